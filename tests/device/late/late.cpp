// The late device: a device of PyTorch's PrivateUse1 kind for tests, whose memory is the host's and whose streams
// run as late as a program allows. What it is for, and what it leaves out, stands in ../README.md.
#include <torch/csrc/utils/pybind.h>

#include "exchanges.h"

namespace late {

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

void start() {
  static Hooks hooks;
  c10::SetAllocator(KIND, &device_allocator());
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

void set_schedule(const std::string& name) {
  const std::map<std::string, Schedule> schedules{{"late", Schedule::late},
                                                  {"side streams first", Schedule::side_streams_first}};
  std::lock_guard<std::mutex> held(device().lock);
  device().schedule = schedules.at(name);
}

c10::intrusive_ptr<c10d::Backend> group(const c10::intrusive_ptr<c10d::Backend>& gloo, int rank, int size) {
  return c10::make_intrusive<Group>(gloo, rank, size);
}

}  // namespace late

PYBIND11_MODULE(late_device, module) {
  using namespace late;
  start();
  module.def("device_count", [] { return int(DEVICES); });
  module.def("current_device", [] { return int(current_device); });
  module.def("set_device", [](int index) { Guard().setDevice({KIND, c10::DeviceIndex(index)}); });
  module.def("synchronize", [](int index) { synchronize(c10::DeviceIndex(index)); });
  module.def("schedule", &set_schedule);
  module.def("default_generator", [](int index) { return default_generator(c10::DeviceIndex(index)); });
  module.def("drop_errors", [](bool drop) { device().drops_errors = drop; });
  module.def("group", &group);
  module.def("bytes", [] { return std::pair(device_pool().bytes, device_pool().peak); });
}
