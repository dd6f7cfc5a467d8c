// ChaCha20 (RFC 7539) on GNU vectors: one block by its rows, or one block in each lane.
//
// Everything here is a template or is inlined always, so that each instruction level of levels.h
// compiles its own copy for its own processor.
#pragma once

#include <cstdint>
#include <cstring>

#define TACIT_INLINE inline __attribute__((always_inline))

namespace tacit {

// The last word of the nonce, as in tacit.rng.
constexpr uint32_t kBits = 1, kFoldIn = 3;
constexpr int kBlockWords = 16, kKeyWords = 8, kGroup = 128, kGroupWords = kGroup * kBlockWords;

template <int W>
struct WordLanes {
  typedef uint32_t Vector __attribute__((vector_size(4 * W)));
};

template <class V>
TACIT_INLINE void quarter_round(V& a, V& b, V& c, V& d) {
  a += b, d ^= a, d = (d << 16) | (d >> 16);
  c += d, b ^= c, b = (b << 12) | (b >> 20);
  a += b, d ^= a, d = (d << 8) | (d >> 24);
  c += d, b ^= c, b = (b << 7) | (b >> 25);
}

template <class V>
TACIT_INLINE void double_rounds(V (&s)[16]) {
  for (int i = 0; i < 10; ++i) {
    quarter_round(s[0], s[4], s[8], s[12]);
    quarter_round(s[1], s[5], s[9], s[13]);
    quarter_round(s[2], s[6], s[10], s[14]);
    quarter_round(s[3], s[7], s[11], s[15]);
    quarter_round(s[0], s[5], s[10], s[15]);
    quarter_round(s[1], s[6], s[11], s[12]);
    quarter_round(s[2], s[7], s[8], s[13]);
    quarter_round(s[3], s[4], s[9], s[14]);
  }
}

TACIT_INLINE void begin(uint32_t (&state)[16], const uint32_t* key, uint32_t low, uint32_t high,
                        uint32_t zero, uint32_t operation) {
  constexpr uint32_t constants[4] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
  std::memcpy(state, constants, 16);
  std::memcpy(state + 4, key, 32);
  state[12] = low, state[13] = high, state[14] = zero, state[15] = operation;
}

#if defined(__clang__) || __GNUC__ >= 12
#define TACIT_TURN(v, i) __builtin_shufflevector(v, v, i, (i + 1) % 4, (i + 2) % 4, (i + 3) % 4)
#else
#define TACIT_TURN(v, i) \
  decltype(v) { v[i], v[(i + 1) % 4], v[(i + 2) % 4], v[(i + 3) % 4] }
#endif

// One block alone: a vector holds a row of the 4x4 state, and rows turn before diagonal rounds.
TACIT_INLINE void single_block(const uint32_t (&state)[16], uint32_t* block) {
  typedef uint32_t Row __attribute__((vector_size(16)));
  Row start[4], a, b, c, d;
  std::memcpy(start, state, 64);
  a = start[0], b = start[1], c = start[2], d = start[3];
  for (int i = 0; i < 10; ++i) {
    quarter_round(a, b, c, d);
    b = TACIT_TURN(b, 1), c = TACIT_TURN(c, 2), d = TACIT_TURN(d, 3);
    quarter_round(a, b, c, d);
    b = TACIT_TURN(b, 3), c = TACIT_TURN(c, 2), d = TACIT_TURN(d, 1);
  }
  start[0] += a, start[1] += b, start[2] += c, start[3] += d;
  std::memcpy(block, start, 64);
}

// Turns the states in the lanes into their blocks.
template <int W>
TACIT_INLINE void blocks_in_lanes(uint32_t (&state)[16][W]) {
  using V = typename WordLanes<W>::Vector;
  V s[16], start;
  for (int i = 0; i < 16; ++i) std::memcpy(&s[i], state[i], sizeof(V));
  double_rounds(s);
  for (int i = 0; i < 16; ++i) {
    std::memcpy(&start, state[i], sizeof(V));
    s[i] += start;
    std::memcpy(state[i], &s[i], sizeof(V));
  }
}

// Writes group number `group` of a stream, [16][lanes], where lanes is 128 but in a stream that has
// only one group. Block 128 group + lane has that number as a 64-bit counter.
template <int W>
TACIT_INLINE void write_group(const uint32_t* key, uint32_t operation, uint64_t group, int lanes,
                              uint32_t* out) {
  using V = typename WordLanes<W>::Vector;
  uint32_t head[16];
  begin(head, key, static_cast<uint32_t>(group * kGroup), static_cast<uint32_t>(group >> 25), 0,
        operation);
  V iota;
  for (int i = 0; i < W; ++i) iota[i] = i;
  for (int first = 0; first < lanes; first += W) {
    V s[16];
    for (int i = 0; i < 16; ++i) s[i] = head[i] - V{};
    s[12] += iota + static_cast<uint32_t>(first);
    const V low = s[12];
    double_rounds(s);
    const int num = lanes - first < W ? lanes - first : W;
    for (int i = 0; i < 16; ++i) {
      s[i] += i == 12 ? low : head[i] - V{};
      if (num == W) {
        std::memcpy(out + i * lanes + first, &s[i], sizeof(V));
      } else {
        uint32_t words[W];
        std::memcpy(words, &s[i], sizeof(V));
        std::memcpy(out + i * lanes + first, words, 4 * num);
      }
    }
  }
}

// Blocks of many keys at positions of their own: out[i] has the first num_words words of block i.
template <int W>
TACIT_INLINE void write_blocks(const uint32_t* keys, const uint32_t* positions, uint32_t* out,
                               int num_words, int64_t first, int64_t last) {
  uint32_t state[16], block[16];
  if (last - first < 3) {
    for (int64_t i = first; i < last; ++i) {
      const uint32_t* position = positions + 4 * i;
      begin(state, keys + 8 * i, position[0], position[1], position[2], position[3]);
      single_block(state, block);
      std::memcpy(out + i * num_words, block, 4 * num_words);
    }
    return;
  }
  alignas(64) uint32_t lanes[16][W];
  for (int64_t start = first; start < last; start += W) {
    const int num = last - start < W ? static_cast<int>(last - start) : W;
    for (int i = 0; i < W; ++i) {
      const int64_t own = start + (i < num ? i : 0);
      const uint32_t* position = positions + 4 * own;
      begin(state, keys + 8 * own, position[0], position[1], position[2], position[3]);
      for (int j = 0; j < 16; ++j) lanes[j][i] = state[j];
    }
    blocks_in_lanes<W>(lanes);
    for (int i = 0; i < num; ++i)
      for (int j = 0; j < num_words; ++j) out[(start + i) * num_words + j] = lanes[j][i];
  }
}

// The first num_words words of short streams, num_blocks blocks each, of many keys. Words of a block
// lie together (children of a split), or words of equal rank (bits: [16][num_blocks]). Lane n of
// first <= n < last is block n % num_blocks of key n / num_blocks.
template <int W>
TACIT_INLINE void write_streams(const uint32_t* keys, uint32_t operation, int64_t num_blocks,
                                int64_t num_words, bool by_block, uint32_t* out, int64_t first,
                                int64_t last) {
  const int64_t of_word = by_block ? 1 : num_blocks, of_block = by_block ? 16 : 1;
  uint32_t state[16], block[16];
  alignas(64) uint32_t lanes[16][W];
  const bool alone = last - first < 3;
  for (int64_t start = first; start < last; start += alone ? 1 : W) {
    const int num = alone ? 1 : last - start < W ? static_cast<int>(last - start) : W;
    int64_t own[W], rank[W];
    int64_t item = start / num_blocks, number = start % num_blocks;
    for (int i = 0; i < num; ++i) {
      own[i] = item, rank[i] = number;
      if (++number == num_blocks) number = 0, ++item;
    }
    if (alone) {
      begin(state, keys + 8 * own[0], static_cast<uint32_t>(rank[0]),
            static_cast<uint32_t>(rank[0] >> 32), 0, operation);
      single_block(state, block);
    } else {
      for (int i = 0; i < W; ++i) {
        const int j = i < num ? i : 0;
        begin(state, keys + 8 * own[j], static_cast<uint32_t>(rank[j]),
              static_cast<uint32_t>(rank[j] >> 32), 0, operation);
        for (int k = 0; k < 16; ++k) lanes[k][i] = state[k];
      }
      blocks_in_lanes<W>(lanes);
    }
    for (int i = 0; i < num; ++i) {
      uint32_t* place = out + own[i] * num_words;
      for (int64_t j = 0, index = rank[i] * of_block; j < 16 && index < num_words;
           ++j, index += of_word)
        place[index] = alone ? block[j] : lanes[j][i];
    }
  }
}

// Words first to last of the stream of more than 128 blocks under a key.
template <int W>
TACIT_INLINE void write_words(const uint32_t* key, uint32_t operation, uint64_t first,
                              uint64_t last, uint32_t* out) {
  alignas(64) uint32_t group[kGroupWords];
  for (uint64_t at = first; at < last;) {
    const uint64_t number = at / kGroupWords, begin = number * kGroupWords;
    const uint64_t end = begin + kGroupWords < last ? begin + kGroupWords : last;
    if (at == begin && end == begin + kGroupWords) {
      write_group<W>(key, operation, number, kGroup, out);
    } else {
      write_group<W>(key, operation, number, kGroup, group);
      std::memcpy(out, group + (at - begin), 4 * (end - at));
    }
    out += end - at;
    at = end;
  }
}

}  // namespace tacit
