// The memory of the device, and pinned memory of the host.
//
// A block that is given back is handed out again at once, whatever the streams still do with it, as by the
// allocator of CUDA: to the stream that it was taken on, once the streams that `record_stream` named have
// passed. Memory that is handed out holds NaN.
#pragma once

#include <ATen/ATen.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <sys/mman.h>

#include <cstring>
#include <unordered_map>

#include "streams.h"

namespace late {

constexpr size_t SPACE = size_t(1) << 36;

// The device's addresses lie where the host has no memory: a kernel of the CPU that was handed one by mistake
// dies. What a stream runs subtracts the distance.
struct Space {
  char* here;
  char* there;
  size_t used = 0;

  Space() {
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* real = mmap(nullptr, SPACE, PROT_READ | PROT_WRITE, flags, -1, 0);
    void* shown = mmap(nullptr, SPACE, PROT_NONE, flags, -1, 0);
    TORCH_CHECK(real != MAP_FAILED && shown != MAP_FAILED, "no address space for the late device");
    here = static_cast<char*>(real);
    there = static_cast<char*>(shown);
  }

  char* take(size_t size) {
    TORCH_CHECK(used + size <= SPACE, "the late device is out of memory");
    return (here + std::exchange(used, used + size));
  }
};

struct Block {
  char* start;
  size_t size;
  Queue* home;  // none for pinned memory
  std::set<Queue*> users;
};

// Blocks, those that wait for streams, and those that are free: of each stream, and of the host's pinned memory.
struct Pool {
  std::mutex lock;
  Space space;
  std::unordered_map<const void*, Block> taken;
  std::map<Queue*, std::vector<Block>> free;
  std::vector<std::pair<Block, std::vector<Moment>>> waiting;
  size_t bytes = 0, peak = 0;

  char* take(size_t size, Queue* home) {
    std::lock_guard<std::mutex> held(lock);
    // What only waited for streams that have passed by now is free.
    for (auto it = waiting.begin(); it != waiting.end();) {
      if (std::all_of(it->second.begin(), it->second.end(), passed)) {
        free[it->first.home].push_back(it->first);
        it = waiting.erase(it);
      } else {
        ++it;
      }
    }
    size = (size + 511) / 512 * 512;
    // The block that was given back last may still be in use. So it is the first to go.
    auto& blocks = free[home];
    auto fits = [&](const Block& block) { return block.size >= size && block.size <= 8 * size; };
    auto found = std::find_if(blocks.rbegin(), blocks.rend(), fits);
    Block block{nullptr, size, home, {}};
    if (found == blocks.rend()) {
      block.start = space.take(size);
    } else {
      block = *found;
      block.users.clear();
      blocks.erase(std::next(found).base());
    }
    bytes += block.size;
    peak = std::max(peak, bytes);
    taken.emplace(block.start, block);
    return block.start;
  }

  void give_back(const char* start) {
    std::lock_guard<std::mutex> held(lock);
    auto node = taken.extract(start);
    auto& block = node.mapped();
    bytes -= block.size;
    std::vector<Moment> moments;
    for (auto* user : block.users) moments.push_back(now(*user));
    if (std::all_of(moments.begin(), moments.end(), passed))
      free[block.home].push_back(block);
    else
      waiting.emplace_back(block, std::move(moments));
  }

  // A stream uses a block besides its home.
  void use(const void* start, Queue& queue) {
    std::lock_guard<std::mutex> held(lock);
    auto found = taken.find(start);
    if (found != taken.end() && found->second.home != &queue) found->second.users.insert(&queue);
  }
};

inline Pool& device_pool() {
  static auto* pool = new Pool();
  return *pool;
}

inline Pool& pinned_pool() {
  static auto* pool = new Pool();
  return *pool;
}

// The address on the host of what has this address on the device.
inline char* real(const void* address) {
  auto& space = device_pool().space;
  return const_cast<char*>(static_cast<const char*>(address)) - (space.there - space.here);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const c10::Device where(KIND, current_device);
    if (size == 0) return {nullptr, nullptr, &release, where};
    auto& home = current(current_device);
    auto* start = device_pool().take(size, &home);
    give(home, [start, size] { std::memset(start, 0xff, size); });
    auto& space = device_pool().space;
    auto* shown = start + (space.there - space.here);
    return {shown, shown, &release, where};
  }
  static void release(void* shown) {
    if (shown != nullptr) device_pool().give_back(real(shown));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void*, const void*, size_t) const override { TORCH_CHECK(false, "copied by streams only"); }
};

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    auto* start = pinned_pool().take(size, nullptr);
    std::memset(start, 0xff, size);
    return {start, start, &release, c10::Device(c10::kCPU)};
  }
  static void release(void* start) {
    if (start != nullptr) pinned_pool().give_back(static_cast<char*>(start));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};

inline DeviceAllocator& device_allocator() {
  static auto* allocator = new DeviceAllocator();
  return *allocator;
}

inline PinnedAllocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator();
  return *allocator;
}

inline bool is_pinned(const void* address) {
  auto& space = pinned_pool().space;
  return address >= space.here && address < space.here + SPACE;
}

// Give a storage another size. The old memory is free at once, and the new one is filled by the current stream.
inline void resize(const c10::Storage& storage, size_t size) {
  auto* impl = storage.unsafeGetStorageImpl();
  TORCH_CHECK(impl->resizable(), "this storage cannot be resized");
  c10::DeviceGuard guard(impl->device());
  auto fresh = device_allocator().allocate(size);
  if (const auto kept = std::min(size, impl->nbytes()); kept > 0)
    give(current(current_device), [to = real(fresh.get()), from = real(impl->data()), kept] {
      std::memcpy(to, from, kept);
    });
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(size);
}

}  // namespace late
