// Work in chunks, shared with a pool of threads that may have none to spare.
#pragma once

#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace tacit {

// Chunks that are claimed one after the other by whoever comes. The pool's tasks share its
// ownership: one that starts after the caller has returned finds no chunk left and never touches
// the work itself, which lies on the caller's stack.
template <class Work>
class Chunks {
 public:
  Chunks(const Work& work, int64_t num_chunks) : work_(&work), num_chunks_(num_chunks) {
    std::fegetenv(&environment_);
  }

  void take_all() {
    for (int64_t i; (i = next_.fetch_add(1)) < num_chunks_;) {
      (*work_)(i);
      const std::lock_guard<std::mutex> lock(mutex_);
      if (++num_done_ == num_chunks_) all_done_.notify_all();
    }
  }

  // For a thread of the pool: how it treats tiny numbers must not show in the results.
  void help() {
    if (next_.load() >= num_chunks_) return;
    std::fenv_t own;
    std::fegetenv(&own);
    std::fesetenv(&environment_);
    take_all();
    std::fesetenv(&own);
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return num_done_ == num_chunks_; });
  }

 private:
  const Work* work_;
  const int64_t num_chunks_;
  std::fenv_t environment_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
  int64_t num_done_ = 0;
};

// Calls work(0) ... work(num_chunks - 1), in any order, and returns when all are done. The caller
// takes every chunk that no helper has begun and waits only for those that run already. So it
// returns even if the pool never starts a task, for example because all its threads are callers.
template <class Pool, class Work>
void in_parallel(Pool& pool, int64_t num_chunks, const Work& work) {
  const int64_t num_threads = num_chunks > 1 ? pool.num_threads() : 1;
  if (num_threads <= 1) {
    for (int64_t i = 0; i < num_chunks; ++i) work(i);
    return;
  }
  const auto chunks = std::make_shared<Chunks<Work>>(work, num_chunks);
  for (int64_t i = 1; i < num_threads && i < num_chunks; ++i)
    pool.Schedule([chunks] { chunks->help(); });
  chunks->take_all();
  chunks->wait();
}

}  // namespace tacit
