// The device guard, which torch asks some eighty times a step of training.

#pragma once

#include "wrappers.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace jgpu {

// One device and one stream, and nothing to switch between: what torch's guard in Python says.
struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return device_type;
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return getDevice();
  }
  c10::Device getDevice() const override {
    return c10::Device(device_type, 0);
  }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override {
    return stream();
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return stream();
  }
  c10::Stream exchangeStream(c10::Stream) const override {
    return stream();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return 1;
  }
  void record(
      void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override {
    return true;
  }
  void synchronizeStream(const c10::Stream&) const override {}

 private:
  c10::Stream stream() const {
    return c10::Stream(c10::Stream::DEFAULT, getDevice());
  }
};

} // namespace jgpu
