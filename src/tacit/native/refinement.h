// Rounded normals to 380 bits, for the few that double precision cannot decide.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tacit {

constexpr int kFurtherWords = 8;

namespace fixed {

// A number is positive or zero: 2 limbs before the point and 6 behind it, the lowest first.
constexpr int kFraction = 6, kLimbs = 8;
__extension__ typedef unsigned __int128 Wide;

struct Number {
  uint64_t limb[kLimbs] = {};
};

inline Number whole(uint64_t n) {
  Number x;
  x.limb[kFraction] = n;
  return x;
}

// a + b, or a - b modulo 2^128.
inline Number sum(const Number& a, const Number& b) {
  Number result;
  uint64_t carry = 0;
  for (int i = 0; i < kLimbs; ++i) {
    const Wide total = Wide{a.limb[i]} + b.limb[i] + carry;
    result.limb[i] = static_cast<uint64_t>(total);
    carry = static_cast<uint64_t>(total >> 64);
  }
  return result;
}

inline Number difference(const Number& a, const Number& b) {
  Number result;
  uint64_t borrow = 0;
  for (int i = 0; i < kLimbs; ++i) {
    const Wide total = Wide{a.limb[i]} - b.limb[i] - borrow;
    result.limb[i] = static_cast<uint64_t>(total);
    borrow = static_cast<uint64_t>(total >> 64) & 1;
  }
  return result;
}

// The product, of which what lies behind the last limb is left out: less than a unit too small.
inline Number product(const Number& a, const Number& b) {
  uint64_t full[2 * kLimbs] = {};
  for (int i = 0; i < kLimbs; ++i) {
    uint64_t carry = 0;
    for (int j = 0; j < kLimbs; ++j) {
      const Wide total = Wide{a.limb[i]} * b.limb[j] + full[i + j] + carry;
      full[i + j] = static_cast<uint64_t>(total);
      carry = static_cast<uint64_t>(total >> 64);
    }
    full[i + kLimbs] = carry;
  }
  Number result;
  std::memcpy(result.limb, full + kFraction, sizeof(result.limb));
  return result;
}

// The quotient by a small number, less than a unit too small.
inline Number quotient(const Number& a, uint64_t divisor) {
  Number result;
  Wide rest = 0;
  for (int i = kLimbs - 1; i >= 0; --i) {
    rest = (rest << 64) | a.limb[i];
    result.limb[i] = static_cast<uint64_t>(rest / divisor);
    rest %= divisor;
  }
  return result;
}

// The words behind the point, highest first, moved to the left by `shift` bits. The last place of
// `words` is the middle of the cell that the others name.
inline Number fraction(const uint32_t (&words)[2 + kFurtherWords + 1], int shift) {
  Number x;
  for (int i = 0; i < 2 * kFraction; ++i) {
    const int place = 32 * i + shift, index = place >> 5, offset = place & 31;
    const auto word = [&](int n) -> uint64_t { return n < 11 ? words[n] : 0; };
    const uint64_t bits = ((word(index) << 32 | word(index + 1)) << offset) >> 32;
    x.limb[kFraction - 1 - i / 2] |= (bits & 0xFFFFFFFF) << (i % 2 ? 0 : 32);
  }
  return x;
}

inline Number from_double(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, 8);
  const int power = static_cast<int>(bits >> 52) & 0x7FF;
  const uint64_t significand = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{power > 0} << 52);
  // The last bit of the significand stands for 2^(power - 1075).
  const int place = (power > 0 ? power : 1) - 1075 + 64 * kFraction;
  Number x;
  for (int bit = 0; bit < 53; ++bit)
    if (significand >> bit & 1 && place + bit >= 0)
      x.limb[(place + bit) / 64] |= uint64_t{1} << (place + bit) % 64;
  return x;
}

constexpr int kLogTerms = 360, kCosineTerms = 44;

// Cut behind the last limb; tests compare them with mpmath.
constexpr uint64_t kLog2[kFraction] = {
    0x559552fb4afa1b10, 0xe7b876206debac98, 0x8a0d175b8baafa2b,
    0x40f343267298b62d, 0xc9e3b39803f2f6af, 0xb17217f7d1cf79ab};
constexpr uint64_t kQuarterPi[kFraction] = {
    0xef9519b3cd3a431b, 0x514a08798e3404dd, 0x020bbea63b139b22,
    0x29024e088a67cc74, 0xc4c6628b80dc1cd1, 0xc90fdaa22168c234};

struct Constants {
  Number inverse[kLogTerms + 1];   // 1 / n
  Number cosine[kCosineTerms];     // 4^n / (2n)!
  Number log_2, quarter_pi;

  Constants() {
    for (int n = 1; n <= kLogTerms; ++n) inverse[n] = quotient(whole(1), n);
    cosine[1] = whole(2);
    for (uint64_t n = 2; n < kCosineTerms; ++n)
      cosine[n] = quotient(product(cosine[n - 1], whole(4)), 2 * n * (2 * n - 1));
    std::memcpy(log_2.limb, kLog2, sizeof(kLog2));
    std::memcpy(quarter_pi.limb, kQuarterPi, sizeof(kQuarterPi));
  }
};

}  // namespace fixed

// Writes the two integers of one column, as tacit.privacy.noise defines them: first the four words,
// then the sixteen further ones.
//
// For uniform words and a ratio up to 2^40 the integers are the defined ones except in an event of
// probability below 2^-250. Derivation. With m the whole part of |x|, the integer is m or m + 1 as
// x^2 is below (m + 1/2)^2 or not. (A double has the root of x^2 to within 2^-48 of itself and so to
// 1/8; where that gives the wrong m, the comparison still gives the right integer.) For the squares
// write d = 2^-383. A product is less than d / 2 too small, sums are exact, and constants are less
// than d too small: in the recurrence of 4^n / (2n)! an error falls by a factor of 3 at least before
// the next unit is added. Inputs are exact, but for what the ratio has below the last limb.
//
// * The steps of the logarithm's series pass on at most half of an error, so it is right to 3 d. It
//   leaves out less than 2^-359. With at most 320 times ln 2 it is right to 2^-358, and at most 223.
// * theta is right to 2 d and its square, at most 0.62, to 5 d. The cosine's steps pass on at most
//   0.62 of an error and add 5 d times a number of at most 2, and d: less than 30 d in all.
//   They leave out 2.5^44 / 88!, below 2^-383. So both weights, at most 2, are right to 32 d.
// * The square of the ratio, at most 2^80, is right to 2 d. So half the square of the radius is
//   right to 2^-277 and is below 2^88, and the squares are right to 2^-275.
//
// Because m + 1/2 is at least 1/2, only values within 2^-275 of it can be misjudged. Normals of
// any standard deviation lie there with probability below 2^-250.
inline void refine(const uint32_t (&words)[4], const uint32_t (&further)[2 * kFurtherWords],
                   double ratio, int64_t (&integers)[2]) {
  using namespace fixed;
  static const Constants constants;

  uint32_t radius[2 + kFurtherWords + 1] = {words[0], words[1]};
  uint32_t angle[2 + kFurtherWords + 1] = {words[2] & 0x1FFFFFFF, words[3]};
  std::memcpy(radius + 2, further, 4 * kFurtherWords);
  std::memcpy(angle + 2, further + kFurtherWords, 4 * kFurtherWords);
  radius[2 + kFurtherWords] = angle[2 + kFurtherWords] = uint32_t{1} << 31;

  // u = mantissa / 2^exponent, with a mantissa from 1/2 to 1.
  int exponent = 0;
  while (radius[exponent / 32] == 0) exponent += 32;
  exponent += __builtin_clz(radius[exponent / 32]);

  // -ln(1 - x) = x + x^2 / 2 + x^3 / 3 + ... for x up to 1/2, by Horner's rule.
  const Number x = difference(whole(1), fraction(radius, exponent));
  Number series;
  for (int n = kLogTerms; n >= 1; --n) series = sum(constants.inverse[n], product(x, series));
  const Number logarithm =
      sum(product(x, series), product(whole(static_cast<uint64_t>(exponent)), constants.log_2));
  const Number factor = from_double(ratio);
  const Number half_square = product(product(factor, factor), logarithm);

  // 1 - cos(2 theta) = 4 theta^2 / 2! - 4^2 theta^4 / 4! + ..., of which no part is negative.
  const Number theta = product(fraction(angle, 3), constants.quarter_pi);
  const Number theta_square = product(theta, theta);
  series = Number{};
  for (int n = kCosineTerms - 1; n >= 1; --n)
    series = difference(constants.cosine[n], product(theta_square, series));
  const Number twice_sine_square = product(theta_square, series);

  const bool exchanged = words[2] >> 29 & 1;
  for (int i = 0; i < 2; ++i) {
    const Number square = product(half_square, (i == 1) != exchanged
                                                   ? twice_sine_square
                                                   : difference(whole(2), twice_sine_square));
    const double leading = (static_cast<double>(square.limb[kFraction + 1]) * 0x1p64 +
                            static_cast<double>(square.limb[kFraction])) +
                           static_cast<double>(square.limb[kFraction - 1]) * 0x1p-64;
    const uint64_t below = static_cast<uint64_t>(std::sqrt(leading));
    Number boundary = whole(below);
    boundary.limb[kFraction - 1] = uint64_t{1} << 63;
    const Number rest = difference(square, product(boundary, boundary));
    const bool above = rest.limb[kLimbs - 1] >> 63 == 0;  // else it is written modulo 2^128
    const int64_t magnitude = static_cast<int64_t>(below + above);
    integers[i] = words[2] >> (31 - i) & 1 ? -magnitude : magnitude;
  }
}

}  // namespace tacit
