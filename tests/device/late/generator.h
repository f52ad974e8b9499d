// Random numbers of the device.
//
// As on CUDA the state is a seed and an offset. An operation that draws takes the next offset when it is queued,
// not when it runs: so the host may read and set the state without waiting for anything.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include "memory.h"

namespace late {

struct Generator final : c10::GeneratorImpl {
  uint64_t start = c10::default_rng_seed_val, offset = 0;

  explicit Generator(c10::DeviceIndex index)
      : c10::GeneratorImpl({KIND, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

  void set_current_seed(uint64_t seed) override {
    start = seed;
    offset = 0;
  }
  void set_offset(uint64_t value) override { offset = value; }
  uint64_t get_offset() const override { return offset; }
  uint64_t current_seed() const override { return start; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return start;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.is_cpu() && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() && state.numel() == 16,
                "the state of a late generator is a tensor of 16 uint8 on the CPU");
    std::memcpy(&start, state.data(), 8);
    std::memcpy(&offset, static_cast<const char*>(state.data()) + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::empty({16}, at::kByte);
    std::memcpy(state.data_ptr(), &start, 8);
    std::memcpy(static_cast<char*>(state.data_ptr()) + 8, &offset, 8);
    return state.getIntrusivePtr();
  }
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->start = start;
    copy->offset = offset;
    return copy;
  }
  static c10::DeviceType device_type() { return KIND; }

  // What one operation draws from.
  at::Generator next() {
    std::lock_guard<std::mutex> held(mutex_);
    return at::make_generator<at::CPUGeneratorImpl>(start * 0x9e3779b97f4a7c15 + 0xd1b54a32d192ed03 * ++offset);
  }
};

inline const at::Generator& default_generator(c10::DeviceIndex index) {
  static auto* made = [] {
    auto* generators = new std::vector<at::Generator>();
    for (c10::DeviceIndex number = 0; number < DEVICES; ++number)
      generators->push_back(at::make_generator<Generator>(number));
    return generators;
  }();
  return made->at(index < 0 ? current_device : index);
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = index; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_device, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_device : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current_device : index);
  }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override { resize(storage, size); }
};

}  // namespace late
