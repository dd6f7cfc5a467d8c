// The exact rounded Gaussian of tacit.privacy.noise: words, normals in double precision with a
// certificate, refinement of what it leaves undecided, and the release of sums with this noise.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "chacha.h"
#include "refinement.h"

namespace tacit {

// Columns that go through one stage after the other, so that roots are taken in a plain loop, which
// compilers turn into vector instructions.
constexpr int kTile = 128;

// The bound on the relative error of a value in double precision; see `evaluate`.
constexpr double kRelativeError = 0x1p-46;

// A limb of a sum counts 2^12 of the limb before it; tacit.privacy.lattice.LIMB_BITS.
constexpr int kLimbBits = 12;

template <int H>
struct Lanes {
  typedef double Double __attribute__((vector_size(8 * H)));
  typedef uint64_t Bits __attribute__((vector_size(8 * H)));
  typedef int64_t Signed __attribute__((vector_size(8 * H)));
  typedef uint32_t Word __attribute__((vector_size(4 * H)));
  typedef int32_t Int __attribute__((vector_size(4 * H)));
  typedef float Float __attribute__((vector_size(4 * H)));
};

struct Tile {
  alignas(64) uint32_t words[4][kTile];
  alignas(64) double u[kTile], radius[kTile];
  alignas(64) int64_t integers[2][kTile];
  alignas(64) uint64_t decided[kTile];
};

template <class V, class T>
TACIT_INLINE void load(V& vector, const T* from) {
  std::memcpy(&vector, from, sizeof(V));
}

template <class V, class T>
TACIT_INLINE void store(const V& vector, T* to) {
  std::memcpy(to, &vector, sizeof(V));
}

template <class To, class From>
TACIT_INLINE void reinterpret(To& to, const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bits are kept");
  std::memcpy(&to, &from, sizeof(To));
}

// chosen where the mask's bits are all one, other where they are zero.
template <class B, class D>
TACIT_INLINE void choose(D& result, const B& mask, const D& chosen, const D& other) {
  B a, b;
  reinterpret(a, chosen), reinterpret(b, other);
  reinterpret(result, static_cast<B>((a & mask) | (b & ~mask)));
}

// Exact for numbers below 2^52: bits behind those of 2^52. AVX2 and SSE2 have no such conversion.
template <class B, class D>
TACIT_INLINE void small_to_double(D& result, const B& number) {
  reinterpret(result, static_cast<B>(number | 0x4330000000000000u));
  result -= 0x1p52;
}

// Numbers of 32 bits as doubles, exactly, and as numbers of 64 bits. Compilers do not know that
// AVX-512 has an instruction for each.
template <int H>
TACIT_INLINE void word_to_double(typename Lanes<H>::Double& result, const typename Lanes<H>::Word& word) {
  if constexpr (H == 8)
    __asm__("vcvtudq2pd %1, %0" : "=v"(result) : "v"(word));
  else
    small_to_double(result, __builtin_convertvector(word, typename Lanes<H>::Bits));
}

template <int H>
TACIT_INLINE void widen(typename Lanes<H>::Bits& result, const typename Lanes<H>::Word& word) {
  if constexpr (H == 8)
    __asm__("vpmovzxdq %1, %0" : "=v"(result) : "v"(word));
  else
    result = __builtin_convertvector(word, typename Lanes<H>::Bits);
}

// Evaluates a polynomial by Horner's rule, the constant coefficient first.
template <class D, int N>
TACIT_INLINE void polynomial(D& result, const D& x, const double (&coefficients)[N]) {
  result = coefficients[N - 1] - D{};
  for (int i = N - 2; i >= 0; --i) result = result * x + coefficients[i];
}

// Computes the integers of num columns, and tells which of them are decided: those are the ones that
// are defined, whatever the further words. With `carefully`, fewer are left, in more time.
//
// Derivation. Write w = 2^-53 for the unit roundoff. The first 64 bits of u name a cell whose middle
// is u' = (U + 1/2) 2^-64. Write p for u', or for 1 - u' where the first bit is 1: then p comes from
// the complemented bits and has a relative error of 2 w, however near u is to one.
//
// * -ln u' = -e ln 2 - ln f, where f 2^e = u' and f lies between 0.7 and 1.42, and
//   ln f = 2 atanh(s), s = (f - 1) / (f + 1). There f - 1 is exact, or -p where e = 0. So s has a
//   relative error of at most 5 w, beside an absolute one of 2 w where e < 0. As s^2 is below 0.0295,
//   nine terms of the series leave out s^18 / 19 / (1 - s^2) < 8 w of it, and Horner's rule adds 4 w
//   because its terms fall by a factor of 34. Where e < 0 the sum is at least 0.34 and at least half
//   of -e ln 2, whose error is 2 w of itself. So -ln u' has a relative error of at most 32 w,
//   and its root 17 w.
// * theta has a relative error of 5 w. As theta^2 is below 0.617, eight terms of the sine leave out
//   theta^16 / 17! < w of it, and nine of the cosine less than 2^-58. With Horner's rule (terms fall by
//   a factor of 3 at least) the relative errors are below 11 w.
// * The products with the ratio and the root add 3 w. In all this is less than 32 w = 2^-48 of the
//   value; the bound is 2^-46.
// * The cells: within one, unless it is the lowest, ln u is within (3/2) 2^-65 / u' of ln u', so the
//   root of -2 ln u moves by at most (3/2) 2^-64 / (u' R) with R the root in the middle. An angle moves
//   by at most 2^-62, and so do its sine and cosine. The careful bound is 2^-63 / (u' R) + 2^-61 R,
//   times the ratio. The quick one asks that p be at least 2^-12. Then R is at most 4.1. If u' is
//   below 1/2, R is at least 1.17 and 1 / (u' R) at most 2^12; else R is at least 2^-5.5 and
//   1 / (u' R) at most 2^6.5. So 2^-50, times the ratio, is enough. It leaves one column in 2000.
//   A column in the lowest cell is always undecided.
// * The distance from the value to the next half is computed to within 2^-53; the bound is 2^-50.
//
// The integer that is tried may be any that the machine found: what counts is that the value lies
// within 1/2 - error of it. Where a compiler contracts a product and a sum, one rounding less happens.
template <int H, bool carefully>
TACIT_INLINE void evaluate(Tile& tile, int num, double ratio, double relative_error) {
  using Double = typename Lanes<H>::Double;
  using Bits = typename Lanes<H>::Bits;
  using Word = typename Lanes<H>::Word;
  constexpr double log_terms[9] = {4.0,      4.0 / 3,  4.0 / 5,  4.0 / 7, 4.0 / 9,
                                   4.0 / 11, 4.0 / 13, 4.0 / 15, 4.0 / 17};
  constexpr double sine_terms[8] = {1.0,         -1.0 / 6,        1.0 / 120,        -1.0 / 5040,
                                    1.0 / 362880, -1.0 / 39916800, 1.0 / 6227020800,
                                    -1.0 / 1307674368000};
  constexpr double cosine_terms[9] = {1.0,           -0.5,           1.0 / 24,
                                      -1.0 / 720,    1.0 / 40320,    -1.0 / 3628800,
                                      1.0 / 479001600, -1.0 / 87178291200, 1.0 / 20922789888000};
  constexpr double minus_log_4 = -1.3862943611198906, quarter_pi = 0.7853981633974483;

  for (int c = 0; c < num; c += H) {
    Word w0, w1;
    load(w0, tile.words[0] + c), load(w1, tile.words[1] + c);
    const Word one = w0 >> 31, flip = -one;
    Double upper, lower, near_one, u, p, exponent, f, s, series;
    word_to_double<H>(upper, w0 ^ flip);
    word_to_double<H>(lower, w1 ^ flip);
    word_to_double<H>(near_one, one);
    p = upper * 0x1p-32 + (lower + 0.5) * 0x1p-64;
    u = p * (1.0 - 2.0 * near_one) + near_one;  // p, or 1 - p: the product is exact
    // The exponent that leaves a fraction from 0.707 to 1.414, plus 128 so that it is positive
    // (there is no arithmetic shift of 64 bits before AVX-512), and that fraction.
    Bits bits;
    reinterpret(bits, u);
    const Bits e = (bits + (0x0800000000000000u - 0x3FE6A09E00000000u)) >> 52;
    reinterpret(f, static_cast<Bits>(bits + 0x0800000000000000u - (e << 52)));
    small_to_double(exponent, e);
    exponent -= 128.0;
    Bits is_zero;
    reinterpret(is_zero, exponent == 0.0);
    choose(s, is_zero, static_cast<Double>(-p), static_cast<Double>(f - 1.0));
    s /= f + 1.0;
    polynomial(series, static_cast<Double>(s * s), log_terms);
    store(static_cast<Double>(exponent * minus_log_4 - s * series), tile.radius + c);
    if (carefully) store(u, tile.u + c);
  }

  const int padded = (num + H - 1) / H * H;
  for (int c = 0; c < padded; ++c) tile.radius[c] = __builtin_sqrt(tile.radius[c]);

  for (int c = 0; c < num; c += H) {
    Word w0, w1, w2, w3;
    load(w0, tile.words[0] + c), load(w1, tile.words[1] + c);
    load(w2, tile.words[2] + c), load(w3, tile.words[3] + c);
    Bits high;
    widen<H>(high, w2);
    Double upper, lower, radius, sine, cosine, x, y;
    word_to_double<H>(upper, w2 & 0x1FFFFFFFu);
    word_to_double<H>(lower, w3);
    const Double theta = (upper * 0x1p-29 + (lower + 0.5) * 0x1p-61) * quarter_pi;
    const Double square = theta * theta;
    polynomial(sine, square, sine_terms);
    sine *= theta;
    polynomial(cosine, square, cosine_terms);
    const Bits exchanged = -((high >> 29) & 1u);
    choose(x, exchanged, sine, cosine);
    choose(y, exchanged, cosine, sine);
    load(radius, tile.radius + c);
    const Double scaled = ratio * radius;

    Double error_of_cell;
    Bits decided;
    if (carefully) {
      Double u;
      load(u, tile.u + c);
      error_of_cell = ratio * (0x1p-63 / (u * radius) + 0x1p-61 * radius) + 0x1p-50;
      reinterpret(decided, __builtin_convertvector(w0 | w1, Bits) != 0u);
    } else {
      error_of_cell = (ratio + 1.0) * 0x1p-50 - Double{};
      Bits from_end;
      widen<H>(from_end, (w0 ^ -(w0 >> 31)) >> 20);
      reinterpret(decided, from_end != 0u);
    }
    for (int i = 0; i < 2; ++i) {
      const Double magnitude = scaled * (i == 0 ? x : y);
      // Adding 1.5 2^52 rounds to an integer, which then stands in the last bits.
      const Double moved = magnitude + 0x1.8p52;
      Double distance = magnitude - (moved - 0x1.8p52);
      Bits integer, absolute, within;
      reinterpret(integer, moved);
      integer -= 0x4338000000000000u;
      reinterpret(absolute, distance);
      reinterpret(distance, static_cast<Bits>(absolute & 0x7FFFFFFFFFFFFFFFu));
      reinterpret(within, 0.5 - distance > relative_error * magnitude + error_of_cell);
      decided &= within;
      const Bits negative = -((high >> (31 - i)) & 1u);
      store(static_cast<Bits>((integer ^ negative) - negative), tile.integers[i] + c);
    }
    store(decided, tile.decided + c);
  }
}

// Evaluates a tile, looks again at each column that is left, and refines what is still undecided,
// with the further words that `further(column, words)` writes. Returns through `looks`, if it is not
// null, how far each column had to go.
template <int H, class Further>
TACIT_INLINE void decide(Tile& tile, int num, double ratio, double relative_error,
                         const Further& further, int32_t* looks) {
  // Columns after the last fill up a vector. What they hold is computed and not used.
  evaluate<H, false>(tile, num, ratio, relative_error);
  uint64_t all = ~uint64_t{0};
  for (int c = 0; c < num; ++c) all &= tile.decided[c];
  if (looks)
    for (int c = 0; c < num; ++c) looks[c] = 0;
  if (all) return;
  Tile own;
  std::memset(&own, 0, sizeof(own));
  for (int c = 0; c < num; ++c) {
    if (tile.decided[c]) continue;
    uint32_t words[4], more[2 * kFurtherWords];
    for (int i = 0; i < 4; ++i) own.words[i][0] = words[i] = tile.words[i][c];
    evaluate<H, true>(own, 1, ratio, relative_error);
    int64_t integers[2] = {own.integers[0][0], own.integers[1][0]};
    if (looks) looks[c] = own.decided[0] ? 1 : 2;
    if (!own.decided[0]) {
      further(c, more);
      refine(words, more, ratio, integers);
    }
    for (int i = 0; i < 2; ++i) tile.integers[i][c] = integers[i];
  }
}

// A slice of a draw, and what is to be made of it: sums with noise in single or double precision, or
// the high and low words of the draw.
struct Draw {
  const uint32_t* key;
  double ratio, relative_error;
  uint64_t num_columns, first_column;
  int64_t length;
  const int32_t* integers;
  int num_limbs;
  double scale;
  float* single;
  double* twofold;
  int32_t* high;
  uint32_t* low;
};

// The words of a row of the draw, a group of the stream at a time. A stream of one group only is
// computed once for all rows.
template <int W>
struct Row {
  uint64_t next;
  uint64_t group;
  uint32_t* buffer;
};

template <int W>
TACIT_INLINE void read(Row<W>& row, const uint32_t* key, int lanes, bool is_short, uint32_t* to,
                       int num) {
  const uint64_t size = static_cast<uint64_t>(lanes) * kBlockWords;
  while (num > 0) {
    const uint64_t group = row.next / size, offset = row.next % size;
    if (!is_short && group != row.group) {
      write_group<W>(key, kBits, group, lanes, row.buffer);
      row.group = group;
    }
    const int here = size - offset < static_cast<uint64_t>(num) ? static_cast<int>(size - offset) : num;
    std::memcpy(to, row.buffer + offset, 4 * here);
    row.next += here, to += here, num -= here;
  }
}

// Exact but for one rounding, on any processor: the halves are exact, and one sum puts them together.
template <class B, class D>
TACIT_INLINE void integer_to_double(D& result, const B& number) {
  D upper, lower;
  reinterpret(upper, static_cast<B>((number >> 32) ^ 0x4530000080000000u));
  reinterpret(lower, static_cast<B>((number & 0xFFFFFFFFu) | 0x4330000000000000u));
  result = (upper - 0x1.0000080100000p84) + lower;
}

template <int H>
TACIT_INLINE void release(const Draw& draw, const Tile& tile, int64_t start, int num) {
  using Double = typename Lanes<H>::Double;
  using Bits = typename Lanes<H>::Bits;
  using Signed = typename Lanes<H>::Signed;
  using Int = typename Lanes<H>::Int;
  using Float = typename Lanes<H>::Float;
  for (int i = 0; i < 2; ++i) {
    const int64_t at = i * draw.length + start;
    if (draw.high) {
      for (int c = 0; c < num; ++c) {
        draw.high[at + c] = static_cast<int32_t>(tile.integers[i][c] >> 32);
        draw.low[at + c] = static_cast<uint32_t>(tile.integers[i][c]);
      }
      continue;
    }
    for (int c = 0; c < num; c += H) {
      const int here = num - c < H ? num - c : H;
      Bits total;
      load(total, tile.integers[i] + c);
      for (int limb = 0; limb < draw.num_limbs; ++limb) {
        const int32_t* own = draw.integers + 2 * limb * draw.length + at + c;
        Int part = {};
        if (here == H) {
          load(part, own);
        } else {
          int32_t rest[H] = {};
          std::memcpy(rest, own, 4 * here);
          load(part, rest);
        }
        Bits wide;
        reinterpret(wide, __builtin_convertvector(part, Signed));
        total += wide << (kLimbBits * limb);
      }
      Double value;
      integer_to_double(value, total);
      value *= draw.scale;
      if (draw.single) {
        const Float cast = __builtin_convertvector(value, Float);
        float rest[H];
        store(cast, here == H ? draw.single + at + c : rest);
        if (here < H) std::memcpy(draw.single + at + c, rest, 4 * here);
      } else {
        double rest[H];
        store(value, here == H ? draw.twofold + at + c : rest);
        if (here < H) std::memcpy(draw.twofold + at + c, rest, 8 * here);
      }
    }
  }
}

// The further words of a column: the block of bits of a key that is folded in for it.
struct FurtherOfKey {
  const uint32_t* key;
  uint64_t column;

  void operator()(int c, uint32_t (&words)[2 * kFurtherWords]) const {
    uint32_t state[16], child[16];
    begin(state, key, static_cast<uint32_t>(column + c), 0, 0, kFoldIn);
    single_block(state, child);
    begin(state, child, 0, 0, 0, kBits);
    single_block(state, words);
  }
};

// Draws columns first to last of a slice, and releases them.
template <int W, int H>
TACIT_INLINE void draw_columns(const Draw& draw, int64_t first, int64_t last) {
  alignas(64) uint32_t buffers[4][kGroupWords];
  const uint64_t num_blocks = (4 * draw.num_columns + kBlockWords - 1) / kBlockWords;
  const int lanes = num_blocks < kGroup ? static_cast<int>(num_blocks) : kGroup;
  const bool is_short = num_blocks <= kGroup;
  if (is_short) write_group<W>(draw.key, kBits, 0, lanes, buffers[0]);
  Row<W> rows[4];
  for (int i = 0; i < 4; ++i) {
    const uint64_t next = i * draw.num_columns + draw.first_column + static_cast<uint64_t>(first);
    rows[i] = {next, ~uint64_t{0}, buffers[is_short ? 0 : i]};
  }
  Tile tile;
  std::memset(&tile, 0, sizeof(tile));
  for (int64_t start = first; start < last; start += kTile) {
    const int num = last - start < kTile ? static_cast<int>(last - start) : kTile;
    for (int i = 0; i < 4; ++i) read(rows[i], draw.key, lanes, is_short, tile.words[i], num);
    const FurtherOfKey further{draw.key, draw.first_column + static_cast<uint64_t>(start)};
    decide<H>(tile, num, draw.ratio, draw.relative_error, further, nullptr);
    release<H>(draw, tile, start, num);
  }
}

// Integers of given words, uint32[4, n] and uint32[16, n], for tests.
template <int H>
TACIT_INLINE void decide_words(const uint32_t* words, const uint32_t* further, int64_t length,
                               double ratio, double relative_error, int32_t* high, uint32_t* low,
                               int32_t* looks) {
  struct Given {
    const uint32_t* further;
    int64_t start, length;
    void operator()(int c, uint32_t (&words)[2 * kFurtherWords]) const {
      for (int i = 0; i < 2 * kFurtherWords; ++i) words[i] = further[i * length + start + c];
    }
  };
  Draw draw = {};
  draw.length = length, draw.high = high, draw.low = low;
  Tile tile;
  std::memset(&tile, 0, sizeof(tile));
  for (int64_t start = 0; start < length; start += kTile) {
    const int num = length - start < kTile ? static_cast<int>(length - start) : kTile;
    for (int i = 0; i < 4; ++i)
      std::memcpy(tile.words[i], words + i * length + start, 4 * num);
    decide<H>(tile, num, ratio, relative_error, Given{further, start, length}, looks + start);
    release<H>(draw, tile, start, num);
  }
}

}  // namespace tacit
