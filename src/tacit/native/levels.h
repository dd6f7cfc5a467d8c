// The same code for several processors: which copy runs is decided when the program does.
#pragma once

#include <cstdint>

#include "chacha.h"
#include "gaussian.h"
#include "sums.h"

namespace tacit {

struct Level {
  const char* name;
  void (*write_blocks)(const uint32_t* keys, const uint32_t* positions, uint32_t* out,
                       int num_words, int64_t first, int64_t last);
  void (*write_streams)(const uint32_t* keys, uint32_t operation, int64_t num_blocks,
                        int64_t num_words, bool by_block, uint32_t* out, int64_t first,
                        int64_t last);
  void (*write_words)(const uint32_t* key, uint32_t operation, uint64_t first, uint64_t last,
                      uint32_t* out);
  void (*draw_columns)(const Draw& draw, int64_t first, int64_t last);
  void (*decide_words)(const uint32_t* words, const uint32_t* further, int64_t length,
                       double ratio, double relative_error, int32_t* high, uint32_t* low,
                       int32_t* looks);
  void (*add_rounded)(const float* values, const float* weights, int64_t num_records,
                      int64_t num_columns, int64_t first, int64_t last, int num_limbs,
                      int32_t* out);
};

// A level has vectors of W words, or of H doubles.
#define TACIT_LEVEL(NAME, ATTRIBUTE, W, H)                                                        \
  namespace NAME {                                                                                \
  ATTRIBUTE void blocks(const uint32_t* keys, const uint32_t* positions, uint32_t* out, int num,  \
                        int64_t first, int64_t last) {                                            \
    write_blocks<W>(keys, positions, out, num, first, last);                                      \
  }                                                                                               \
  ATTRIBUTE void streams(const uint32_t* keys, uint32_t operation, int64_t num_blocks,            \
                         int64_t num_words, bool by_block, uint32_t* out, int64_t first,          \
                         int64_t last) {                                                          \
    write_streams<W>(keys, operation, num_blocks, num_words, by_block, out, first, last);         \
  }                                                                                               \
  ATTRIBUTE void words(const uint32_t* key, uint32_t operation, uint64_t first, uint64_t last,    \
                       uint32_t* out) {                                                           \
    write_words<W>(key, operation, first, last, out);                                             \
  }                                                                                               \
  ATTRIBUTE void columns(const Draw& draw, int64_t first, int64_t last) {                         \
    draw_columns<W, H>(draw, first, last);                                                        \
  }                                                                                               \
  ATTRIBUTE void decide(const uint32_t* words, const uint32_t* further, int64_t length,           \
                        double ratio, double relative_error, int32_t* high, uint32_t* low,        \
                        int32_t* looks) {                                                         \
    decide_words<H>(words, further, length, ratio, relative_error, high, low, looks);             \
  }                                                                                               \
  ATTRIBUTE void sums(const float* values, const float* weights, int64_t num_records,             \
                      int64_t num_columns, int64_t first, int64_t last, int num_limbs,            \
                      int32_t* out) {                                                             \
    add_rounded(values, weights, num_records, num_columns, first, last, num_limbs, out);          \
  }                                                                                               \
  constexpr Level level = {#NAME, blocks, streams, words, columns, decide, sums};                 \
  }

#if defined(__x86_64__)
TACIT_LEVEL(avx512,
            __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,bmi2,"
                                  "prefer-vector-width=512"))),
            16, 8)
TACIT_LEVEL(avx2, __attribute__((target("avx2,fma,bmi2"))), 8, 4)
TACIT_LEVEL(sse2, __attribute__((target("sse2"))), 4, 2)
#endif
TACIT_LEVEL(plain, , 4, 2)

// The levels that this processor has, the best first.
inline int levels(const Level* (&found)[4]) {
  int num = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("bmi2");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    found[num++] = &avx512::level;
  if (has_avx2) found[num++] = &avx2::level;
  found[num++] = &sse2::level;  // every processor of 64 bits has it
#endif
  found[num++] = &plain::level;
  return num;
}

}  // namespace tacit
