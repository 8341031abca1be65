// States of random generators, for the executor's ops that take no generator.

#pragma once

#include "python.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/Generator.h>

#include <mutex>

namespace jgpu {

inline at::CPUGeneratorImpl& host_generator(PyObject* object) {
  const int is_one = THPGenerator_Check(object);
  if (is_one < 0) {
    raise();
  }
  if (is_one == 0 ||
      reinterpret_cast<THPGenerator*>(object)->cdata.device().type() != c10::DeviceType::CPU) {
    throw torch::TypeError("a generator of the host is to be given");
  }
  auto* impl = reinterpret_cast<THPGenerator*>(object)->cdata.unsafeGetGeneratorImpl();
  return *static_cast<at::CPUGeneratorImpl*>(impl);
}

// As `jgpu.broker.executor.programs.running.rng.exchange_states`, without a tensor of each state.
inline void exchange_states(PyObject* one, PyObject* other) {
  at::CPUGeneratorImpl& first = host_generator(one);
  at::CPUGeneratorImpl& second = host_generator(other);
  if (&first == &second) {
    return;
  }
  const std::scoped_lock both(first.mutex_, second.mutex_);
  const at::mt19937 engine = first.engine();
  first.set_engine(second.engine());
  second.set_engine(engine);
  const auto single = first.next_float_normal_sample();
  first.set_next_float_normal_sample(second.next_float_normal_sample());
  second.set_next_float_normal_sample(single);
  const auto wide = first.next_double_normal_sample();
  first.set_next_double_normal_sample(second.next_double_normal_sample());
  second.set_next_double_normal_sample(wide);
}

} // namespace jgpu
