// Operations: each is queued on the current stream, and runs later as the CPU's kernel of the same name.
//
// What an operation is about (sizes, views, where its result will lie) is settled when it is called. The CPU's
// kernel gets tensors that lie at the same memory. It keeps nothing alive: if the memory is given to somebody
// else before the stream gets there, the operation reads and writes what is theirs.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "generator.h"

namespace late {

using c10::IValue;
using Stack = torch::jit::Stack;

inline bool is_late(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == KIND; }

// A tensor of the CPU at the memory of a tensor of the device.
inline at::Tensor over(const at::Tensor& tensor) {
  auto* start = tensor.storage().data_ptr().get();
  char* address = start == nullptr ? nullptr : real(start) + tensor.storage_offset() * tensor.element_size();
  auto made = at::from_blob(address, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

template <typename F>
IValue map_tensors(const IValue& value, const F& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList())
      list.push_back(tensor.has_value() ? std::optional<at::Tensor>(change(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

// Numbers travel with the operation. Any other tensor of the CPU would have to be copied by the program.
inline at::Tensor number_of_the_host(const at::Tensor& tensor, const c10::FunctionSchema& schema) {
  const bool index = schema.name().find("index") != std::string::npos;
  TORCH_CHECK(tensor.dim() == 0 || index, "Expected all tensors to be on the same device, but ", schema.name(),
              " got tensors on ", tensor.device(), " and on the late device");
  auto copy = tensor.detach().clone();
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) copy.unsafeGetTensorImpl()->set_wrapped_number(true);
  return copy;
}

inline bool is_generator(const c10::Argument& argument) {
  const auto& type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>())
    return optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
  return type->kind() == c10::TypeKind::GeneratorType;
}

inline Generator& generator_for(const IValue& value, c10::DeviceIndex index) {
  auto found = value.isNone() ? default_generator(index) : value.toGenerator();
  TORCH_CHECK(found.device().type() == KIND, "Expected a '", c10::Device(KIND), "' device type for generator but found '",
              found.device().type(), "'");
  return *found.get<Generator>();
}

// Shapes, strides and dtypes of the results, found without the values. Empty if these depend on the values.
inline std::optional<std::vector<IValue>> results_without_values(
    const c10::OperatorHandle& operation, const std::vector<IValue>& arguments) {
  if (!operation.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return std::nullopt;
  auto without_values = [](const at::Tensor& tensor) -> at::Tensor {
    if (!tensor.defined()) return tensor;
    at::Tensor made = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return made;
  };
  Stack stack;
  for (const auto& argument : arguments) {
    auto value = map_tensors(argument, without_values);
    stack.push_back(value.isDevice() ? IValue(c10::Device(at::kMeta)) : value.isGenerator() ? IValue() : value);
  }
  try {
    operation.callBoxed(&stack);
  } catch (const std::exception&) {
    // Some are written in Python, and say there that the sizes depend on the values.
    WithGil with_gil;
    PyErr_Clear();
    return std::nullopt;
  }
  return stack;
}

// Results on the device, and the tensors over them that the CPU's results are copied to.
struct Results {
  std::vector<IValue> values;
  std::vector<at::Tensor> places;

  void like(const std::vector<IValue>& found, c10::Device where) {
    for (const auto& value : found)
      values.push_back(map_tensors(value, [&](const at::Tensor& tensor) -> at::Tensor {
        if (!tensor.defined()) return tensor;
        auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(where));
        places.push_back(over(made));
        return made;
      }));
  }

  static void fill(const std::vector<at::Tensor>& places, const std::vector<IValue>& found) {
    size_t place = 0;
    for (const auto& value : found)
      map_tensors(value, [&](const at::Tensor& tensor) {
        if (tensor.defined()) places[place++].copy_(tensor);
        return tensor;
      });
  }
};

// An operation may be handed empty tensors for its results, and give them their sizes.
inline void give_sizes(const c10::OperatorHandle& operation, const std::vector<IValue>& arguments) {
  std::vector<at::Tensor> empty;
  const auto& schema = operation.schema();
  for (size_t i = 0; i < arguments.size(); ++i)
    if (schema.arguments()[i].is_out() && arguments[i].isTensor()) empty.push_back(arguments[i].toTensor());
  if (std::none_of(empty.begin(), empty.end(), [](const auto& tensor) { return tensor.numel() == 0; })) return;
  auto found = results_without_values(operation, arguments);
  for (size_t i = 0; found && i < empty.size(); ++i) empty[i].resize_((*found)[i].toTensor().sizes());
}

inline void queue_operation(const c10::OperatorHandle& operation, Stack* stack) {
  at::AutoDispatchBelowAutograd below;
  c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet(
      {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::PythonDispatcher}));
  const auto& schema = operation.schema();
  const auto count = schema.arguments().size();
  const std::vector<IValue> arguments(stack->end() - static_cast<int64_t>(count), stack->end());

  std::optional<c10::Device> where;
  auto look = [&](const at::Tensor& tensor) {
    if (is_late(tensor)) {
      TORCH_CHECK(!where || *where == tensor.device(), "Expected all tensors to be on the same device, but ",
                  schema.name(), " got tensors on ", *where, " and on ", tensor.device());
      where = tensor.device();
    }
    return tensor;
  };
  for (const auto& argument : arguments) {
    map_tensors(argument, look);
    if (!where && argument.isDevice() && argument.toDevice().type() == KIND) where = argument.toDevice();
  }
  if (!where || !where->has_index()) where = c10::Device(KIND, current_device);
  c10::DeviceGuard guard(*where);
  auto& queue = current(where->index());
  give_sizes(operation, arguments);

  // An operation that writes to its arguments returns these; any other returns new tensors.
  std::vector<size_t> written;
  Stack here;
  for (size_t i = 0; i < count; ++i) {
    const auto& argument = schema.arguments()[i];
    const bool writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    if (writes) written.push_back(i);
    auto value = map_tensors(arguments[i], [&](const at::Tensor& tensor) -> at::Tensor {
      if (is_late(tensor)) return over(tensor);
      if (!tensor.defined()) return tensor;
      TORCH_CHECK(!writes, schema.name(), " would write to a tensor on ", tensor.device());
      return number_of_the_host(tensor, schema);
    });
    if (value.isDevice()) value = c10::Device(at::kCPU);
    if (is_generator(argument)) value = generator_for(value, where->index()).next();
    here.push_back(std::move(value));
  }
  std::vector<IValue> returned;
  Results results;
  std::function<void()> run;
  const auto& returns = schema.returns();
  const bool makes = !returns.empty() && (returns[0].alias_info() == nullptr || written.empty());
  if (!makes) {
    run = [operation, here]() mutable { operation.callBoxed(&here); };
    // What is returned is what was written to, in the same order.
    for (size_t i = 0; i < returns.size(); ++i) returned.push_back(arguments[written[i]]);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(returns[0].alias_info() == nullptr, "the late device has no view ", schema.name());
    if (auto found = results_without_values(operation, arguments)) {
      results.like(*found, *where);
      run = [operation, here, places = results.places]() mutable {
        operation.callBoxed(&here);
        Results::fill(places, here);
      };
    } else {
      // As on CUDA the host waits for sizes that depend on values.
      wait_for(now(queue));
      operation.callBoxed(&here);
      results.like(here, *where);
      run = [here, places = results.places] { Results::fill(places, here); };
    }
    returned = results.values;
  }
  give(queue, [run = std::move(run), name = schema.name()] {
    try {
      run();
    } catch (const std::exception& error) {
      TORCH_CHECK(false, name, ", which ran late: ", error.what());
    }
  });
  torch::jit::drop(*stack, count);
  for (auto& value : returned) stack->push_back(std::move(value));
}

inline void fallback(const c10::OperatorHandle& operation, c10::DispatchKeySet, Stack* stack) {
  queue_operation(operation, stack);
}

// Copies.

inline at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::AutoDispatchBelowAutograd below;
  const auto where = is_late(to) ? to.device() : from.device();
  auto& queue = current(where.index());
  auto there = is_late(to) ? over(to) : to;
  auto here = is_late(from) ? over(from) : from;
  if (is_late(from) && is_late(to)) {
    auto& other = current(to.device().index() == where.index() ? from.device().index() : where.index());
    if (&other != &queue) {
      // Between devices, both of their streams take part.
      wait_on(queue, record(other));
      give(queue, [there, here] { there.copy_(here); });
      wait_on(other, record(queue));
      return to;
    }
    give(queue, [there, here] { there.copy_(here); });
    return to;
  }
  const auto& host = is_late(to) ? from : to;
  auto* start = host.storage().data_ptr().get();
  if (is_pinned(start)) {
    // The copy reads or writes this memory when its turn comes, and keeps nothing alive but by the allocator.
    pinned_pool().use(start, queue);
    auto raw = at::from_blob(host.data_ptr(), host.sizes(), host.strides(), host.options().pinned_memory(false));
    (is_late(to) ? here : there) = raw;
    give(queue, [there, here] { there.copy_(here); });
    if (!non_blocking) wait_for(now(queue));
    return to;
  }
  if (is_late(to)) {
    // What can move is copied before the call returns.
    here = from.detach().clone();
    give(queue, [there, here] { there.copy_(here); });
    if (!non_blocking) wait_for(now(queue));
    return to;
  }
  wait_for(now(queue));
  there.copy_(here);
  return to;
}

inline at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

inline at::Scalar item(const at::Tensor& tensor) {
  wait_for(now(current(tensor.device().index())));
  at::AutoDispatchBelowAutograd below;
  return over(tensor).item();
}

inline bool equal(const at::Tensor& one, const at::Tensor& other) {
  wait_for(now(current(one.device().index())));
  at::AutoDispatchBelowAutograd below;
  return over(one).equal(over(other));
}

// Memory, views and random numbers.

inline c10::Device chosen(std::optional<c10::Device> device) {
  return device && device->has_index() ? *device : c10::Device(KIND, current_device);
}

inline at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                        std::optional<at::Device> device, std::optional<bool>,
                        std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(chosen(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(sizes, &device_allocator(), keys, c10::dtype_or_default(dtype), format);
}

inline at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                                std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(chosen(device));
  const c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator(), keys, c10::dtype_or_default(dtype));
}

inline const at::Tensor& resize_tensor(const at::Tensor& tensor, at::IntArrayRef sizes,
                                       std::optional<at::MemoryFormat> format) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  if (format) impl->empty_tensor_restride(*format);
  const auto needed =
      at::detail::computeStorageNbytes(impl->sizes(), impl->strides(), impl->itemsize(), impl->storage_offset());
  if (needed > tensor.storage().nbytes()) resize(tensor.storage(), needed);
  return tensor;
}

inline at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, int64_t offset, at::IntArrayRef sizes,
                               at::IntArrayRef strides) {
  at::native::checkSetStorage(tensor, std::move(storage), offset, sizes, strides);
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  if (strides.data() == nullptr)
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  else
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

inline at::Tensor& set_whole_storage(at::Tensor& tensor, at::Storage storage) {
  const auto count = static_cast<int64_t>(storage.nbytes() / tensor.element_size());
  return set_storage(tensor, std::move(storage), 0, {count}, {});
}

inline at::Tensor& set_tensor(at::Tensor& tensor, const at::Tensor& other) {
  return set_storage(tensor, other.storage(), other.storage_offset(), other.sizes(), other.strides());
}

inline void record_stream(at::Tensor& tensor, at::Stream stream) {
  auto* start = tensor.storage().data_ptr().get();
  if (start != nullptr) device_pool().use(real(start), queue_of(stream));
}

// Whether `tensor.data = other` may put memory of the host below a tensor of the device, and the other way round.
inline bool may_share(const at::Tensor& tensor, const at::Tensor& other) {
  return tensor.layout() == at::kStrided && other.layout() == at::kStrided && !tensor.is_meta() && !other.is_meta();
}

// The CPU's own would draw from the generator of the CPU, at the moment at which it runs.
inline std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p,
                                                         std::optional<bool> train) {
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, at::kBool)};
  const auto mask = at::empty_like(input, at::kBool).bernoulli_(1 - p);
  return {input * mask * (p == 1 ? 0. : 1 / (1 - p)), mask};
}

// Without values torch would say that the mean and its deviation are of another dtype than the CPU makes them.
inline std::tuple<at::Tensor, at::Tensor, at::Tensor> native_layer_norm(
    const at::Tensor& input, at::IntArrayRef normalized, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, double eps) {
  auto sizes = input.sizes().vec();
  std::fill(sizes.end() - static_cast<int64_t>(normalized.size()), sizes.end(), 1);
  const bool mixed = weight && weight->defined() && weight->scalar_type() != input.scalar_type();
  const auto kind = input.options().dtype(mixed ? at::kFloat : input.scalar_type());
  std::tuple made{at::empty_like(input, at::MemoryFormat::Contiguous), at::empty(sizes, kind), at::empty(sizes, kind)};
  auto over_some = [](const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional(over(*tensor)) : std::nullopt;
  };
  const std::vector places{over(std::get<0>(made)), over(std::get<1>(made)), over(std::get<2>(made))};
  give(current(input.device().index()), [places, x = over(input), shape = normalized.vec(), w = over_some(weight),
                                         b = over_some(bias), eps] {
    auto [out, mean, deviation] = at::native_layer_norm(x, shape, w, b, eps);
    Results::fill(places, {out, mean, deviation});
  });
  return made;
}

}  // namespace late

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&late::fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", late::empty);
  library.impl("empty_strided", late::empty_strided);
  library.impl("resize_", late::resize_tensor);
  library.impl("set_.source_Storage", late::set_whole_storage);
  library.impl("set_.source_Storage_storage_offset", late::set_storage);
  library.impl("set_.source_Tensor", late::set_tensor);
  library.impl("view", at::native::view);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("_copy_from", late::copy_from);
  library.impl("_copy_from_and_resize", late::copy_from_and_resize);
  library.impl("_local_scalar_dense", late::item);
  library.impl("equal", late::equal);
  library.impl("_has_compatible_shallow_copy_type", late::may_share);
  library.impl("record_stream", late::record_stream);
  library.impl("native_dropout", late::native_dropout);
  // What torch composes for devices without kernels of their own has other last bits than the CPU's kernels.
  library.impl("native_layer_norm", late::native_layer_norm);
  library.impl("native_layer_norm_backward", torch::CppFunction::makeFromBoxedFunction<&late::fallback>());
}
