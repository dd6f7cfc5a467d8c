// ChaCha20, exact noise, drawing and adding records as custom calls of XLA on CPUs.
//
// Every operand and result may have any number of leading dimensions, the same for all: those of
// jax.vmap. The results are defined bit for bit by tacit.rng and tacit.privacy.noise, so they depend
// neither on the instruction level nor on how many threads share the work.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <cerrno>
#include <unistd.h>

#include "levels.h"
#include "pool.h"
#include "xla/ffi/api/ffi.h"

#define TACIT_EXPORT __attribute__((visibility("default")))

namespace tacit {
namespace {

namespace ffi = xla::ffi;

using Words = ffi::Buffer<ffi::U32>;
using WordsOut = ffi::ResultBuffer<ffi::U32>;

// Blocks, words, columns and summed numbers that make a chunk worth a task of the pool, tens of
// microseconds.
constexpr int64_t kChunkBlocks = 1024, kChunkWords = 64 * kGroupWords, kChunkColumns = 32768,
                  kChunkNumbers = 1 << 18;

const Level* best_level() {
  const Level* found[4];
  levels(found);
  return found[0];
}

std::atomic<const Level*> chosen_level{best_level()};

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many draws the leading dimensions make, where a draw has num_own elements of this buffer.
template <class Buffer>
int64_t batch_of(const Buffer& buffer, int64_t num_own) {
  return static_cast<int64_t>(buffer.element_count()) / num_own;
}

double as_double(const uint32_t* low_and_high) {
  double value;
  std::memcpy(&value, low_and_high, 8);  // little-endian, as all processors that XLA runs on
  return value;
}

ffi::Error refused(const char* why) { return ffi::Error::InvalidArgument(why); }

// Blocks uint32[..., m], m <= 16, of keys uint32[..., 8] at positions uint32[..., 4].
ffi::Error blocks(ffi::ThreadPool pool, Words keys, Words positions, WordsOut out) {
  const Level& level = *chosen_level.load(std::memory_order_relaxed);
  const int64_t batch = batch_of(keys, kKeyWords);
  if (batch == 0) return ffi::Error::Success();
  const int64_t num_words = batch_of(*out, batch);
  if (num_words > kBlockWords || batch_of(positions, 4) != batch) return refused("tacit_blocks");
  in_parallel(pool, ceil_div(batch, kChunkBlocks), [&](int64_t i) {
    const int64_t first = i * kChunkBlocks, last = std::min(batch, first + kChunkBlocks);
    level.write_blocks(keys.typed_data(), positions.typed_data(), out->typed_data(),
                       static_cast<int>(num_words), first, last);
  });
  return ffi::Error::Success();
}

// The first words of streams of at most 128 blocks, or all children of keys: uint32[..., num_words].
ffi::Error streams(ffi::ThreadPool pool, Words keys, WordsOut out, int64_t operation,
                   int64_t num_blocks, int64_t by_block) {
  const Level& level = *chosen_level.load(std::memory_order_relaxed);
  const int64_t batch = batch_of(keys, kKeyWords);
  if (batch == 0 || out->element_count() == 0) return ffi::Error::Success();
  const int64_t num_words = batch_of(*out, batch);
  if (num_words > num_blocks * kBlockWords) return refused("tacit_streams");
  const int64_t num = batch * num_blocks;
  in_parallel(pool, ceil_div(num, kChunkBlocks), [&](int64_t i) {
    const int64_t first = i * kChunkBlocks, last = std::min(num, first + kChunkBlocks);
    level.write_streams(keys.typed_data(), static_cast<uint32_t>(operation), num_blocks, num_words,
                        by_block != 0, out->typed_data(), first, last);
  });
  return ffi::Error::Success();
}

// Words uint32[..., length] from the starts uint32[...] on of streams of more than 128 blocks.
ffi::Error words(ffi::ThreadPool pool, Words keys, Words starts, WordsOut out, int64_t operation) {
  const Level& level = *chosen_level.load(std::memory_order_relaxed);
  const int64_t batch = batch_of(keys, kKeyWords);
  if (batch == 0 || out->element_count() == 0) return ffi::Error::Success();
  if (batch_of(starts, 1) != batch) return refused("tacit_words");
  const int64_t length = batch_of(*out, batch), num_chunks = ceil_div(length, kChunkWords);
  in_parallel(pool, batch * num_chunks, [&](int64_t i) {
    const int64_t item = i / num_chunks, first = i % num_chunks * kChunkWords;
    const uint64_t start = starts.typed_data()[item];
    level.write_words(keys.typed_data() + kKeyWords * item, static_cast<uint32_t>(operation),
                      start + first, start + std::min(length, first + kChunkWords),
                      out->typed_data() + item * length + first);
  });
  return ffi::Error::Success();
}

// Never below the bound that is proven here. Tests ask for a larger one, so that columns refine.
double checked_error(int64_t bits) {
  double error;
  std::memcpy(&error, &bits, 8);
  return error > kRelativeError ? error : kRelativeError;
}

template <class Pool>
void draw_all(Pool& pool, int64_t batch, int64_t length, const std::function<Draw(int64_t)>& draw_of) {
  const Level& level = *chosen_level.load(std::memory_order_relaxed);
  const int64_t num_chunks = ceil_div(length, kChunkColumns);
  in_parallel(pool, batch * num_chunks, [&](int64_t i) {
    const int64_t first = i % num_chunks * kChunkColumns;
    level.draw_columns(draw_of(i / num_chunks), first, std::min(length, first + kChunkColumns));
  });
}

// scale * (f + K), [..., 2, length] in single or double precision, for integers f in limbs
// int32[..., num_limbs, 2, length]. Ratio and scale are doubles as low and high words.
ffi::Error noise(ffi::ThreadPool pool, Words keys, Words ratios, Words firsts,
                 ffi::Buffer<ffi::S32> integers, Words scales, ffi::Result<ffi::AnyBuffer> out,
                 int64_t num_columns, int64_t relative_error) {
  const int64_t batch = batch_of(keys, kKeyWords);
  if (batch == 0 || out->element_count() == 0) return ffi::Error::Success();
  const bool is_single = out->element_type() == ffi::F32;
  const int64_t length = batch_of(*out, 2 * batch), num_limbs = batch_of(integers, 2 * length * batch);
  if ((!is_single && out->element_type() != ffi::F64) || num_limbs < 1 || num_limbs > 2 ||
      batch_of(ratios, 2) != batch || batch_of(scales, 2) != batch || batch_of(firsts, 1) != batch)
    return refused("tacit_noise");
  draw_all(pool, batch, length, [&](int64_t i) {
    Draw draw = {};
    draw.key = keys.typed_data() + kKeyWords * i;
    draw.ratio = as_double(ratios.typed_data() + 2 * i);
    draw.relative_error = checked_error(relative_error);
    draw.num_columns = num_columns, draw.first_column = firsts.typed_data()[i];
    draw.length = length;
    draw.integers = integers.typed_data() + i * num_limbs * 2 * length;
    draw.num_limbs = static_cast<int>(num_limbs);
    draw.scale = as_double(scales.typed_data() + 2 * i);
    if (is_single)
      draw.single = static_cast<float*>(out->untyped_data()) + i * 2 * length;
    else
      draw.twofold = static_cast<double*>(out->untyped_data()) + i * 2 * length;
    return draw;
  });
  return ffi::Error::Success();
}

// The high and low words of K alone, int32[..., 2, length] and uint32[..., 2, length].
ffi::Error integers(ffi::ThreadPool pool, Words keys, Words ratios, Words firsts,
                    ffi::ResultBuffer<ffi::S32> high, WordsOut low, int64_t num_columns,
                    int64_t relative_error) {
  const int64_t batch = batch_of(keys, kKeyWords);
  if (batch == 0 || low->element_count() == 0) return ffi::Error::Success();
  const int64_t length = batch_of(*low, 2 * batch);
  if (batch_of(ratios, 2) != batch || batch_of(firsts, 1) != batch) return refused("tacit_integers");
  draw_all(pool, batch, length, [&](int64_t i) {
    Draw draw = {};
    draw.key = keys.typed_data() + kKeyWords * i;
    draw.ratio = as_double(ratios.typed_data() + 2 * i);
    draw.relative_error = checked_error(relative_error);
    draw.num_columns = num_columns, draw.first_column = firsts.typed_data()[i];
    draw.length = length;
    draw.high = high->typed_data() + i * 2 * length, draw.low = low->typed_data() + i * 2 * length;
    return draw;
  });
  return ffi::Error::Success();
}

// Places int32[..., length] of pairs of words uint32[..., 2, length], in their order.
ffi::Error ordered(Words words, ffi::ResultBuffer<ffi::S32> out, int64_t length) {
  if (out->element_count() == 0) return ffi::Error::Success();
  const int64_t batch = batch_of(*out, length);
  if (batch_of(words, 2 * length) != batch) return refused("tacit_ordered");
  for (int64_t i = 0; i < batch; ++i) {
    const uint32_t* own = words.typed_data() + 2 * length * i;
    order_of(own, own + length, length, out->typed_data() + length * i);
  }
  return ffi::Error::Success();
}

// The first of equal numbers, int32[..., wanted] of int32[..., length], and whether they suffice.
ffi::Error firsts(ffi::Buffer<ffi::S32> drawn, ffi::ResultBuffer<ffi::S32> out,
                  ffi::ResultBuffer<ffi::PRED> is_enough) {
  const int64_t batch = static_cast<int64_t>(is_enough->element_count());
  if (batch == 0) return ffi::Error::Success();
  const int64_t length = batch_of(drawn, batch), num_wanted = batch_of(*out, batch);
  if (length == 0) return refused("tacit_firsts");
  for (int64_t i = 0; i < batch; ++i)
    is_enough->typed_data()[i] = first_of_each(drawn.typed_data() + length * i, length,
                                               out->typed_data() + num_wanted * i, num_wanted);
  return ffi::Error::Success();
}

// Sums int32[..., num_limbs, num_columns] over records of rounded values float[..., num_records,
// num_columns] times weights float[..., num_records].
ffi::Error rounded_sum(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> values,
                       ffi::Buffer<ffi::F32> weights, ffi::ResultBuffer<ffi::S32> out,
                       int64_t num_records, int64_t num_limbs) {
  if (out->element_count() == 0) return ffi::Error::Success();
  if (num_records == 0 || num_limbs < 1 || num_limbs > 2) return refused("tacit_rounded_sum");
  const Level& level = *chosen_level.load(std::memory_order_relaxed);
  const int64_t batch = batch_of(weights, num_records);
  const int64_t num_columns = batch_of(*out, batch * num_limbs);
  if (batch_of(values, num_records * num_columns) != batch) return refused("tacit_rounded_sum");
  // Of the size that is worth a task, and whole cache lines.
  const int64_t part = ceil_div(std::max<int64_t>(512, kChunkNumbers / num_records), 16) * 16;
  const int64_t num_chunks = ceil_div(num_columns, part);
  in_parallel(pool, batch * num_chunks, [&](int64_t i) {
    const int64_t item = i / num_chunks, first = i % num_chunks * part;
    level.add_rounded(values.typed_data() + item * num_records * num_columns,
                      weights.typed_data() + item * num_records, num_records, num_columns, first,
                      std::min(num_columns, first + part), static_cast<int>(num_limbs),
                      out->typed_data() + item * num_limbs * num_columns);
  });
  return ffi::Error::Success();
}

// The same numbers, as a rule in the same place.
ffi::Error same(ffi::AnyBuffer x, ffi::Result<ffi::AnyBuffer> out) {
  if (out->untyped_data() != x.untyped_data() && x.size_bytes() > 0)
    std::memcpy(out->untyped_data(), x.untyped_data(), x.size_bytes());
  return ffi::Error::Success();
}

// Reads so many bytes from a place of a file, or returns false.
bool read_all(int file, int64_t place, int64_t num_bytes, char* to) {
  for (int64_t done = 0; done < num_bytes;) {
    const ssize_t count = pread(file, to + done, static_cast<size_t>(num_bytes - done), place + done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    done += count;
  }
  return true;
}

// A pool of one thread that is busy until it is told otherwise, for a test.
class BusyPool {
 public:
  int64_t num_threads() const { return 2; }

  template <class F>
  void Schedule(F&& f) {
    tasks_.emplace_back(std::forward<F>(f));
  }

  void run() {
    for (; !tasks_.empty(); tasks_.pop_front()) tasks_.front()();
  }

 private:
  std::deque<std::function<void()>> tasks_;
};

// A pool that starts every task at once, on a thread of its own.
class EagerPool {
 public:
  int64_t num_threads() const { return 4; }

  template <class F>
  void Schedule(F&& f) {
    threads_.emplace_back(std::forward<F>(f));
  }

  void run() {
    for (; !threads_.empty(); threads_.pop_front()) threads_.front().join();
  }

 private:
  std::deque<std::thread> threads_;
};

template <class Pool>
bool shares_work(int64_t num_chunks) {
  Pool pool;
  int64_t num_calls = 0;
  {
    const auto counts = std::make_unique<std::atomic<int>[]>(num_chunks);
    for (int64_t i = 0; i < num_chunks; ++i) counts[i] = 0;
    const auto late = std::make_unique<std::function<void(int64_t)>>(
        [&](int64_t i) { ++counts[i]; });
    in_parallel(pool, num_chunks, *late);
    for (int64_t i = 0; i < num_chunks; ++i) num_calls += counts[i] == 1;
  }
  pool.run();  // the work is gone by now
  return num_calls == num_chunks;
}

}  // namespace
}  // namespace tacit

#define TACIT_HANDLER(NAME, FUNCTION, ...)                       \
  extern "C" TACIT_EXPORT XLA_FFI_Error* NAME(XLA_FFI_CallFrame*); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(NAME, FUNCTION, __VA_ARGS__)

namespace ffi = xla::ffi;
using tacit::Words;

TACIT_HANDLER(tacit_blocks, tacit::blocks,
              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Arg<Words>().Arg<Words>().Ret<Words>());

TACIT_HANDLER(tacit_streams, tacit::streams,
              ffi::Ffi::Bind()
                  .Ctx<ffi::ThreadPool>()
                  .Arg<Words>()
                  .Ret<Words>()
                  .Attr<int64_t>("operation")
                  .Attr<int64_t>("num_blocks")
                  .Attr<int64_t>("by_block"));

TACIT_HANDLER(tacit_words, tacit::words,
              ffi::Ffi::Bind()
                  .Ctx<ffi::ThreadPool>()
                  .Arg<Words>()
                  .Arg<Words>()
                  .Ret<Words>()
                  .Attr<int64_t>("operation"));

TACIT_HANDLER(tacit_noise, tacit::noise,
              ffi::Ffi::Bind()
                  .Ctx<ffi::ThreadPool>()
                  .Arg<Words>()
                  .Arg<Words>()
                  .Arg<Words>()
                  .Arg<ffi::Buffer<ffi::S32>>()
                  .Arg<Words>()
                  .Ret<ffi::AnyBuffer>()
                  .Attr<int64_t>("num_columns")
                  .Attr<int64_t>("relative_error"));

TACIT_HANDLER(tacit_integers, tacit::integers,
              ffi::Ffi::Bind()
                  .Ctx<ffi::ThreadPool>()
                  .Arg<Words>()
                  .Arg<Words>()
                  .Arg<Words>()
                  .Ret<ffi::Buffer<ffi::S32>>()
                  .Ret<Words>()
                  .Attr<int64_t>("num_columns")
                  .Attr<int64_t>("relative_error"));

TACIT_HANDLER(tacit_ordered, tacit::ordered,
              ffi::Ffi::Bind().Arg<Words>().Ret<ffi::Buffer<ffi::S32>>().Attr<int64_t>("length"));

TACIT_HANDLER(tacit_firsts, tacit::firsts,
              ffi::Ffi::Bind()
                  .Arg<ffi::Buffer<ffi::S32>>()
                  .Ret<ffi::Buffer<ffi::S32>>()
                  .Ret<ffi::Buffer<ffi::PRED>>());

TACIT_HANDLER(tacit_rounded_sum, tacit::rounded_sum,
              ffi::Ffi::Bind()
                  .Ctx<ffi::ThreadPool>()
                  .Arg<ffi::Buffer<ffi::F32>>()
                  .Arg<ffi::Buffer<ffi::F32>>()
                  .Ret<ffi::Buffer<ffi::S32>>()
                  .Attr<int64_t>("num_records")
                  .Attr<int64_t>("num_limbs"));

TACIT_HANDLER(tacit_same, tacit::same,
              ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());

extern "C" {

// What the library was built from; see tacit.native.
TACIT_EXPORT const char* tacit_build() { return TACIT_BUILD; }

TACIT_EXPORT const char* tacit_level() { return tacit::chosen_level.load()->name; }

// Chooses a level that this processor has, by its name, and returns 1, or returns 0.
TACIT_EXPORT int tacit_choose_level(const char* name) {
  const tacit::Level* found[4];
  const int num = tacit::levels(found);
  for (int i = 0; i < num; ++i) {
    if (std::strcmp(found[i]->name, name) == 0) {
      tacit::chosen_level = found[i];
      return 1;
    }
  }
  return 0;
}

// Reads rows of so many bytes from places of a file, one after the other into out. Rows that lie
// close together in the file, in order, are read at once, with what is between them. Returns how many
// were read: fewer than num where the file ends before, or cannot be read.
TACIT_EXPORT int64_t tacit_read_rows(int file, int64_t num_bytes, const int64_t* places, int64_t num,
                                     char* out) {
  constexpr int64_t kLargestRun = 1 << 16, kLargestGap = 1 << 12;
  std::vector<char> run;
  for (int64_t i = 0, next; i < num; i = next) {
    int64_t end = places[i] + num_bytes;
    for (next = i + 1; next < num; ++next) {
      const int64_t gap = places[next] - end;
      if (gap < -num_bytes || gap > kLargestGap || end + gap + num_bytes - places[i] > kLargestRun)
        break;
      end += gap + num_bytes;
    }
    const bool alone = next == i + 1;
    if (!alone && run.empty()) run.resize(kLargestRun);
    char* to = alone ? out + i * num_bytes : run.data();
    if (!tacit::read_all(file, places[i], end - places[i], to)) return i;
    for (int64_t k = i; !alone && k < next; ++k)
      std::memcpy(out + k * num_bytes, to + (places[k] - places[i]), static_cast<size_t>(num_bytes));
  }
  return num;
}

// For tests: the integers of given words; 0 in `looks` where double precision decided at once, 1
// where it did so carefully, and 2 where the column was refined.
TACIT_EXPORT void tacit_decide(const uint32_t* words, const uint32_t* further, int64_t length,
                               double ratio, double relative_error, int32_t* high, uint32_t* low,
                               int32_t* looks) {
  const double error = relative_error > tacit::kRelativeError ? relative_error : tacit::kRelativeError;
  tacit::chosen_level.load()->decide_words(words, further, length, ratio, error, high, low, looks);
}

// For tests: whether work is done, each chunk once, with threads that are busy or at once there.
TACIT_EXPORT int tacit_shares_work(int is_busy, int64_t num_chunks) {
  return is_busy ? tacit::shares_work<tacit::BusyPool>(num_chunks)
                 : tacit::shares_work<tacit::EagerPool>(num_chunks);
}

}  // extern "C"
