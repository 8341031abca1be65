// `native_batch_norm`, which torch takes apart in Python (`native_batch_norm_decomposition`).

#pragma once

#include "calls.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <tuple>

namespace jgpu {

class BatchNorm final : public Way {
 public:
  bool carry_out(torch::jit::Stack* stack) override {
    const Given given = torch::jit::last(*stack, 8);
    for (const auto& each : given.slice(0, 5)) {
      if (is_tensor(each) && !device_tensor(each.toTensor())) {
        return false;
      }
    }
    if (!is_tensor(given[0]) || is_tensor(given[3]) != is_tensor(given[4])) {
      return false;
    }
    auto [normed, mean, scale] = made(given);
    torch::jit::drop(*stack, 8);
    torch::jit::push(*stack, std::move(normed), std::move(mean), std::move(scale));
    return true;
  }

 private:
  using Made = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

  static bool is_tensor(const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined();
  }

  static std::optional<at::Tensor> if_tensor(const c10::IValue& value) {
    return is_tensor(value) ? std::optional(value.toTensor()) : std::nullopt;
  }

  // The state is that of a call in Python, behind all keys above Python's own.
  static Made made(Given given) {
    using c10::DispatchKeySet;
    constexpr auto python = c10::DispatchKey::Python;
    const c10::impl::ExcludeDispatchKeyGuard below(
        DispatchKeySet(DispatchKeySet::FULL) ^
        (DispatchKeySet(DispatchKeySet::FULL_AFTER, python) | DispatchKeySet(python)));
    const at::Tensor& input = given[0].toTensor();
    const auto weight = if_tensor(given[1]), bias = if_tensor(given[2]);
    const bool trains = given[5].toBool();
    const double momentum = given[6].toDouble(), epsilon = given[7].toDouble();
    if (!is_tensor(given[3])) {
      return at::_native_batch_norm_legit(input, weight, bias, trains, momentum, epsilon);
    }
    at::Tensor mean = given[3].toTensor(), variance = given[4].toTensor();
    if (trains) {
      return at::_native_batch_norm_legit(
          input, weight, bias, mean, variance, true, momentum, epsilon);
    }
    return at::_native_batch_norm_legit_no_training(
        input, weight, bias, mean, variance, momentum, epsilon);
  }
};

} // namespace jgpu
