// What a step does with records beside arithmetic of its network: drawing their numbers, and adding
// their rounded gradients. Defined by tacit.privacy.drawing and tacit.privacy.clipping.adding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "chacha.h"
#include "gaussian.h"

namespace tacit {

// Writes the places of pairs of words in the order of the words, the first of each pair being the
// high one. Equal pairs stay in order.
inline void order_of(const uint32_t* high, const uint32_t* low, int64_t num, int32_t* out) {
  struct Entry {
    uint64_t words;
    int32_t place;
  };
  std::vector<Entry> entries(num);
  for (int64_t i = 0; i < num; ++i)
    entries[i] = {static_cast<uint64_t>(high[i]) << 32 | low[i], static_cast<int32_t>(i)};
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.words != b.words ? a.words < b.words : a.place < b.place;
  });
  for (int64_t i = 0; i < num; ++i) out[i] = entries[i].place;
}

// Writes the first num_wanted numbers that had not occurred before, in order, and returns whether
// there are as many. What is missing is the last number.
inline bool first_of_each(const int32_t* drawn, int64_t num, int32_t* out, int64_t num_wanted) {
  uint64_t size = 16;
  while (size < 2 * static_cast<uint64_t>(num)) size *= 2;
  std::vector<int32_t> seen(size, -1);  // numbers of records are not negative
  int64_t found = 0;
  for (int64_t i = 0; i < num && found < num_wanted; ++i) {
    const uint32_t mixed = static_cast<uint32_t>(drawn[i]) * 0x9E3779B1u;
    uint64_t at = (mixed ^ mixed >> 15) & (size - 1);
    while (seen[at] != -1 && seen[at] != drawn[i]) at = (at + 1) & (size - 1);
    if (seen[at] == -1) seen[at] = out[found++] = drawn[i];
  }
  for (int64_t i = found; i < num_wanted; ++i) out[i] = drawn[num - 1];
  return found == num_wanted;
}

// Adds the integers nearest to value * weight over records, for columns first to last; values are
// [num_records][num_columns]. A weight that is not positive leaves its record out, whatever its
// values are. With two limbs the low one counts units, and the high one 2^kLimbBits of them.
TACIT_INLINE void add_rounded(const float* values, const float* weights, int64_t num_records,
                              int64_t num_columns, int64_t first, int64_t last, int num_limbs,
                              int32_t* out) {
  constexpr int kTile = 512;
  for (int64_t start = first; start < last; start += kTile) {
    const int num = static_cast<int>(std::min<int64_t>(kTile, last - start));
    uint32_t low[kTile] = {}, high[kTile] = {};
    for (int64_t i = 0; i < num_records; ++i) {
      const float weight = weights[i];
      if (!(weight > 0)) continue;
      const float* row = values + i * num_columns + start;
      if (num_limbs == 1) {
        for (int c = 0; c < num; ++c)
          low[c] += static_cast<uint32_t>(static_cast<int32_t>(__builtin_rintf(row[c] * weight)));
      } else {
        for (int c = 0; c < num; ++c) {
          const int32_t whole = static_cast<int32_t>(__builtin_rintf(row[c] * weight));
          low[c] += static_cast<uint32_t>(whole & ((1 << kLimbBits) - 1));
          high[c] += static_cast<uint32_t>(whole >> kLimbBits);
        }
      }
    }
    for (int c = 0; c < num; ++c) out[start + c] = static_cast<int32_t>(low[c]);
    if (num_limbs == 2)
      for (int c = 0; c < num; ++c) out[num_columns + start + c] = static_cast<int32_t>(high[c]);
  }
}

}  // namespace tacit
