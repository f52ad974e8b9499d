// Streams that run late, and events.
//
// A stream is a queue and a thread. The thread carries out what is queued in order, but no sooner than somebody
// asks: a host thread that waits, or another stream that waits and was itself asked. So of all the orders in
// which a GPU could have done the work, this is the one in which everything happens as late as the program
// allows, and it is the same one in each run. What nothing orders comes out wrong, and not only now and then.
#pragma once

#include <Python.h>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

namespace late {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex DEVICES = 2;

// Whoever blocks lets go of the interpreter, so that the threads that it waits for can go on.
struct WithoutGil {
  PyThreadState* state = nullptr;
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) state = PyEval_SaveThread();
  }
  ~WithoutGil() {
    if (state != nullptr) PyEval_RestoreThread(state);
  }
};

struct WithGil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~WithGil() { PyGILState_Release(state); }
};

struct Queue;

// All that a queue was given up to a moment.
struct Moment {
  Queue* queue = nullptr;
  uint64_t number = 0;
};

struct Task {
  std::function<void()> run;
  Moment after;  // if it has a queue, the task is a wait for that moment
};

struct Queue {
  int64_t id;
  c10::DeviceIndex device;
  std::deque<Task> tasks;
  uint64_t queued = 0, done = 0, asked = 0;
  // For each queue up to where this one comes after it: what `check_turn` of exchanges.h looks into.
  std::map<Queue*, uint64_t> order;
  std::condition_variable something_asked, something_done;
  bool started = false;
};

// Whether all streams run late, or only the default ones. Otherwise the thread that queues waits for the work.
enum class Schedule { late, side_streams_first };

// All of the state is behind one lock, and is never destroyed: threads may outlive the end of `main`.
struct Device {
  std::mutex lock;
  std::vector<std::unique_ptr<Queue>> queues;
  std::exception_ptr error;
  Schedule schedule = Schedule::late;
  uint64_t events = 0;  // counts whatever a host thread does with streams
  bool patience_started = false;
  bool drops_errors = false;  // a program without one of its waits may hand any numbers to an operation
};

inline Device& device() {
  static auto* device = [] {
    auto* made = new Device();
    for (c10::DeviceIndex index = 0; index < DEVICES; ++index) {
      made->queues.push_back(std::make_unique<Queue>());
      made->queues.back()->id = made->queues.back()->device = index;
    }
    return made;
  }();
  return *device;
}

inline void work(Queue& queue) {
  at::init_num_threads();
  at::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below;
  std::unique_lock<std::mutex> held(device().lock);
  while (true) {
    queue.something_asked.wait(held, [&] { return !queue.tasks.empty() && queue.asked > queue.done; });
    auto task = std::move(queue.tasks.front());
    queue.tasks.pop_front();
    if (auto [other, number] = task.after; other != nullptr) {
      other->asked = std::max(other->asked, number);
      other->something_asked.notify_all();
      other->something_done.wait(held, [&, last = number] { return other->done >= last; });
    } else {
      held.unlock();
      std::exception_ptr error;
      try {
        task.run();
      } catch (...) {
        error = std::current_exception();
      }
      task = {};
      held.lock();
      if (error != nullptr && !device().drops_errors && device().error == nullptr) device().error = error;
    }
    ++queue.done;
    queue.something_done.notify_all();
  }
}

// Wait until a moment has passed. An error on a stream is raised by the next thread that waits for one.
inline void wait_for(Moment moment) {
  WithoutGil without_gil;
  auto& [queue, number] = moment;
  std::unique_lock<std::mutex> held(device().lock);
  ++device().events;
  queue->asked = std::max(queue->asked, number);
  queue->something_asked.notify_all();
  queue->something_done.wait(held, [&] { return queue->done >= number; });
  if (auto error = std::exchange(device().error, nullptr)) std::rethrow_exception(error);
}

inline void give(Queue& queue, Task task) {
  Moment end;
  {
    std::lock_guard<std::mutex> held(device().lock);
    ++device().events;
    if (!queue.started) {
      queue.started = true;
      std::thread(work, std::ref(queue)).detach();
    }
    queue.tasks.push_back(std::move(task));
    end = {&queue, ++queue.queued};
    if (queue.id < DEVICES || device().schedule == Schedule::late) {
      // It may have been asked for more than there was.
      queue.something_asked.notify_all();
      return;
    }
  }
  wait_for(end);
}

inline void give(Queue& queue, std::function<void()> run) { give(queue, Task{std::move(run), {}}); }

inline Moment now(Queue& queue) {
  std::lock_guard<std::mutex> held(device().lock);
  return {&queue, queue.queued};
}

inline bool passed(Moment moment) {
  std::lock_guard<std::mutex> held(device().lock);
  return moment.queue == nullptr || moment.queue->done >= moment.number;
}

// What an event remembers: the moment, and what its stream comes after at that moment.
struct Event {
  Moment moment;
  std::map<Queue*, uint64_t> order;
};

inline Event record(Queue& queue) {
  std::lock_guard<std::mutex> held(device().lock);
  Event event{{&queue, queue.queued}, queue.order};
  event.order[&queue] = queue.queued;
  return event;
}

inline void wait_on(Queue& queue, const Event& event) {
  if (event.moment.queue == nullptr || event.moment.queue == &queue) return;
  {
    std::lock_guard<std::mutex> held(device().lock);
    for (auto [other, number] : event.order) {
      auto& known = queue.order[other];
      known = std::max(known, number);
    }
  }
  if (!passed(event.moment)) give(queue, Task{{}, event.moment});
}

inline void synchronize(c10::DeviceIndex index) {
  std::vector<Moment> moments;
  {
    std::lock_guard<std::mutex> held(device().lock);
    for (auto& queue : device().queues)
      if (queue->device == index) moments.push_back({queue.get(), queue->queued});
  }
  for (auto moment : moments) wait_for(moment);
}

// A rank may wait for another one in an exchange that nobody there has asked for yet, while the program of that
// rank waits for the first rank by other means, as through a store. A GPU would get there by itself. So does
// this device, once no host thread has done anything with it for a while: then it runs all there is.
inline void be_patient() {
  uint64_t before = 0;
  while (true) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    std::lock_guard<std::mutex> held(device().lock);
    if (device().events == before)
      for (auto& queue : device().queues) {
        queue->asked = std::max(queue->asked, queue->queued);
        queue->something_asked.notify_all();
      }
    before = device().events;
  }
}

inline void start_patience() {
  std::lock_guard<std::mutex> held(device().lock);
  if (!std::exchange(device().patience_started, true)) std::thread(be_patient).detach();
}

inline Queue& new_queue(c10::DeviceIndex index) {
  std::lock_guard<std::mutex> held(device().lock);
  auto& queues = device().queues;
  queues.push_back(std::make_unique<Queue>());
  queues.back()->id = static_cast<int64_t>(queues.size()) - 1;
  queues.back()->device = index;
  return *queues.back();
}

inline Queue& queue_of(const c10::Stream& stream) {
  std::lock_guard<std::mutex> held(device().lock);
  // Stream 0 of each device is the one that is current when nobody chose another.
  return *device().queues.at(stream.id() == 0 ? stream.device_index() : stream.id());
}

inline c10::Stream stream_of(const Queue& queue) {
  const auto id = queue.id < DEVICES ? 0 : queue.id;
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(KIND, queue.device), id);
}

inline thread_local c10::DeviceIndex current_device = 0;
inline thread_local Queue* current_queues[DEVICES] = {};

inline Queue& current(c10::DeviceIndex index) {
  auto*& queue = current_queues[index];
  if (queue == nullptr) queue = &queue_of(c10::Stream(c10::Stream::DEFAULT, c10::Device(KIND, index)));
  return *queue;
}

// How torch itself, such as autograd, switches between devices and streams.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::DeviceIndex index_of(c10::Device device) {
    TORCH_CHECK(device.index() < DEVICES, "there are ", int(DEVICES), " devices, and no ", device);
    return device.index() < 0 ? current_device : device.index();
  }

  c10::DeviceType type() const override { return KIND; }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  c10::Device getDevice() const override { return {KIND, current_device}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {KIND, std::exchange(current_device, index_of(device))};
  }
  void setDevice(c10::Device device) const override { current_device = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }

  c10::Stream getStream(c10::Device device) const override { return stream_of(current(index_of(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(KIND, index_of(device)));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device); }
  c10::Stream getNewStream(c10::Device device, int = 0) const override {
    return stream_of(new_queue(index_of(device)));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    current_queues[stream.device_index()] = &queue_of(stream);
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override { return passed(now(queue_of(stream))); }
  void synchronizeStream(const c10::Stream& stream) const override { wait_for(now(queue_of(stream))); }
  void synchronizeDevice(const c10::DeviceIndex index) const override { synchronize(index); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag)
      const override {
    if (*event == nullptr) *event = new Event();
    *static_cast<Event*>(*event) = late::record(queue_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) wait_on(queue_of(stream), *static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || passed(static_cast<Event*>(event)->moment);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr && static_cast<Event*>(event)->moment.queue != nullptr)
      wait_for(static_cast<Event*>(event)->moment);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
};

}  // namespace late
