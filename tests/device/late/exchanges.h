// Exchanges between ranks: carried by gloo, in the manner of NCCL.
//
// Each process group has a stream of its own. An exchange waits there for the stream that it was called on; `wait`
// lets the current stream wait for the exchange, and no thread. At its turn it is handed to a gloo group as tensors
// of the CPU over the same memory. Until somebody waits for it, the tensors are kept alive.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>

#include "operations.h"

namespace late {

using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;

struct Exchange final : Work {
  Event end;
  c10::DeviceIndex index;
  std::vector<at::Tensor> kept;

  // What nobody waited for is kept until it has ended.
  using Forgotten = std::vector<std::pair<Moment, std::vector<at::Tensor>>>;
  static inline auto* forgotten = new Forgotten();
  static inline auto* lock = new std::mutex();
  ~Exchange() override {
    if (kept.empty()) return;
    std::lock_guard<std::mutex> held(*lock);
    forgotten->emplace_back(end.moment, std::move(kept));
  }
  static void forget() {
    Forgotten ended;  // freed without the lock
    std::lock_guard<std::mutex> held(*lock);
    auto first = std::partition(forgotten->begin(), forgotten->end(), [](auto& each) { return !passed(each.first); });
    ended.assign(std::make_move_iterator(first), std::make_move_iterator(forgotten->end()));
    forgotten->erase(first, forgotten->end());
  }

  Exchange(int rank, c10d::OpType type, Event end, c10::DeviceIndex index, std::vector<at::Tensor> kept)
      : Work(rank, type), end(std::move(end)), index(index), kept(std::move(kept)) {}
  bool isCompleted() override { return passed(end.moment); }
  bool isSuccess() const override { return true; }
  void synchronize() override {
    wait_on(current(index), end);
    kept.clear();
  }
  bool wait(std::chrono::milliseconds) override {
    synchronize();
    return true;
  }
};

struct Group final : c10d::Backend {
  c10::intrusive_ptr<Backend> gloo;
  // One for all devices: a rank may change its device, and the others must find its exchanges in the same order.
  Queue* queue = nullptr;

  Group(c10::intrusive_ptr<Backend> gloo, int rank, int size) : Backend(rank, size), gloo(std::move(gloo)) {}
  const std::string getBackendName() const override { return "late"; }
  bool supportsCoalescing() const override { return false; }
  void setTimeout(std::chrono::milliseconds timeout) override { gloo->setTimeout(timeout); }

  // The last exchange of each group. NCCL's kernels occupy the device while they wait for other ranks. So exchanges of
  // two groups that nothing orders may wait for each other forever, and PyTorch forbids them.
  static void check_turn(Group* group, Queue& queue) {
    static auto* last = new std::map<Group*, Moment>();
    static auto* lock = new std::mutex();
    std::lock_guard<std::mutex> alone(*lock);
    for (auto& [other, moment] : *last) {
      if (other == group || passed(moment)) continue;
      std::lock_guard<std::mutex> held(device().lock);
      auto known = queue.order.find(moment.queue);
      TORCH_CHECK(known != queue.order.end() && known->second >= moment.number,
                  "an exchange of one process group begins before one of another group has ended, and "
                  "nothing orders the two: on NCCL this may wait forever");
    }
    (*last)[group] = {&queue, now(queue).number + 1};
  }

  WorkPtr issue(c10d::OpType type, std::vector<at::Tensor> tensors, std::function<WorkPtr()> start) {
    const auto index = tensors.at(0).device().index();
    c10::DeviceGuard guard(tensors[0].device());
    if (queue == nullptr) queue = &new_queue(index);
    wait_on(*queue, record(current(index)));
    if (getSize() > 1) check_turn(this, *queue);
    Exchange::forget();
    start_patience();
    give(*queue, [start = std::move(start)] { start()->wait(); });
    return c10::make_intrusive<Exchange>(getRank(), type, record(*queue), index, std::move(tensors));
  }

  static std::vector<at::Tensor> all_over(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> made;
    for (const auto& tensor : tensors) made.push_back(over(tensor));
    return made;
  }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return issue(c10d::OpType::BROADCAST, tensors, [this, options, here = all_over(tensors)]() mutable {
      return gloo->broadcast(here, options);
    });
  }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return issue(c10d::OpType::ALLREDUCE, tensors, [this, options, here = all_over(tensors)]() mutable {
      return gloo->allreduce(here, options);
    });
  }

  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& options) override {
    auto tensors = outputs.at(0);
    tensors.push_back(inputs.at(0));
    std::vector<std::vector<at::Tensor>> there{all_over(outputs.at(0))};
    return issue(c10d::OpType::ALLGATHER, tensors, [this, options, there, here = all_over(inputs)]() mutable {
      return gloo->allgather(there, here, options);
    });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return issue(c10d::OpType::_ALLGATHER_BASE, {output, input},
                 [this, options, there = over(output), here = over(input)]() mutable {
                   return gloo->_allgather_base(there, here, options);
                 });
  }

  // The pieces are exchanged and added in rank order.
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(options.reduceOp == c10d::ReduceOp::SUM, "the late device only adds");
    return issue(c10d::OpType::_REDUCE_SCATTER_BASE, {output, input},
                 [this, there = over(output), here = over(input)]() mutable {
                   auto rows = at::empty_like(here).view({getSize(), -1});
                   std::vector<int64_t> equal;
                   gloo->alltoall_base(rows, here, equal, equal)->wait();
                   auto sum = rows[0].clone();
                   for (int row = 1; row < getSize(); ++row) sum.add_(rows[row]);
                   there.view({-1}).copy_(sum);
                   return Work::create_from_future(done());
                 });
  }

  static c10::intrusive_ptr<c10::ivalue::Future> done() {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get());
    future->markCompleted();
    return future;
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& out_sizes,
                        std::vector<int64_t>& in_sizes, const c10d::AllToAllOptions& options) override {
    return issue(c10d::OpType::ALLTOALL_BASE, {output, input},
                 [this, options, out_sizes, in_sizes, there = over(output), here = over(input)]() mutable {
                   return gloo->alltoall_base(there, here, out_sizes, in_sizes, options);
                 });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    for (c10::DeviceIndex index = 0; index < DEVICES; ++index) late::synchronize(index);
    WithoutGil without_gil;
    auto work = gloo->barrier(options);
    work->wait();
    return work;
  }
};

}  // namespace late
