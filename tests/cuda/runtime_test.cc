// The Status that src/cuda/runtime/runtime.cc returns for each answer of a fake CUDA runtime.
#include "cuda/runtime/runtime.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>

#include "multihead/status.h"

namespace multihead::cuda {

int find_code(int& version) {
  version = fake_cuda::runtime.code_version;
  return fake_cuda::answer(fake_cuda::runtime.of_code);
}

namespace {

using fake_cuda::runtime;

class CudaRuntime : public ::testing::Test {
 protected:
  // Each test has a device of its own, because current_device() remembers devices.
  CudaRuntime() {
    static int tests = 0;
    runtime = {};
    runtime.device = ++tests;
    runtime.pointer.device = runtime.device;
    runtime.attributes = {{cudaDevAttrComputeCapabilityMajor, 9},
                          {cudaDevAttrComputeCapabilityMinor, 0},
                          {cudaDevAttrMultiProcessorCount, 132},
                          {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10}};
  }
  // Also checks that the error was cleared, so that the caller's next check does not report it
  // again.
  static void expect(const Status& status, const std::string& argument, const std::string& got) {
    EXPECT_EQ(status.code(), StatusCode::kDevice);
    EXPECT_EQ(status.argument(), argument);
    EXPECT_EQ(status.got(), got);
    EXPECT_EQ(runtime.last, cudaSuccess);
  }

  int number_ = 0;
};

TEST_F(CudaRuntime, DescribesTheCurrentDevice) {
  Device device;
  EXPECT_TRUE(current_device(device).ok());
  EXPECT_EQ(device.compute_capability, 90);
  EXPECT_EQ(device.multiprocessors, 132);
  EXPECT_EQ(device.shared_bytes, 227 << 10);
}

TEST_F(CudaRuntime, AsksForADeviceOnce) {
  Device first, second;
  EXPECT_TRUE(current_device(first).ok());
  const int asked = runtime.asked;
  EXPECT_GT(asked, 0);
  EXPECT_TRUE(current_device(second).ok());
  EXPECT_EQ(runtime.asked, asked);
  EXPECT_EQ(second.compute_capability, first.compute_capability);
  EXPECT_EQ(second.multiprocessors, first.multiprocessors);
  EXPECT_EQ(second.shared_bytes, first.shared_bytes);
}

TEST_F(CudaRuntime, RefusesADeviceThatTheBuildHasNoCodeFor) {
  Device device;
  runtime.of_code = cudaErrorNoKernelImageForDevice;
  expect(current_device(device), "device",
         "cudaErrorNoKernelImageForDevice (209): what CUDA says of it");
  runtime.of_code = cudaSuccess;
  EXPECT_TRUE(current_device(device).ok());
}

// Code for compute capability 8.0 that a newer device compiles does not wait for the previous
// kernel.
TEST_F(CudaRuntime, LaunchesEarlyWhatWasCompiledForIt) {
  int device_number = 58;  // no other test has these
  for (const int version : {80, 89, 90, 120}) {
    Device device;
    runtime.device = device_number++;
    runtime.code_version = version;
    ASSERT_TRUE(current_device(device).ok());
    EXPECT_EQ(device.early_launches, version >= 90) << version;
  }
  Device device;
  runtime.device = device_number;
  runtime.code_version = 90;
  runtime.driver_version = 12020;  // its graphs do not take such launches
  ASSERT_TRUE(current_device(device).ok());
  EXPECT_FALSE(device.early_launches);
}

TEST_F(CudaRuntime, RefusesAMachineWithoutADevice) {
  Device device;
  runtime.of_device = cudaErrorNoDevice;
  expect(current_device(device), "device", "cudaErrorNoDevice (100): what CUDA says of it");
  runtime.of_device = cudaErrorInsufficientDriver;
  expect(current_device(device), "device",
         "cudaErrorInsufficientDriver (35): what CUDA says of it");
  runtime.of_device = cudaSuccess;
  runtime.of_attributes = cudaErrorNoDevice;
  expect(current_device(device), "device", "cudaErrorNoDevice (100): what CUDA says of it");
}

TEST_F(CudaRuntime, RefusesADeviceOlderThan80) {
  Device device;
  runtime.attributes[cudaDevAttrComputeCapabilityMajor] = 7;
  runtime.attributes[cudaDevAttrComputeCapabilityMinor] = 5;
  const Status status = current_device(device);
  expect(status, "device", "7.5");
  EXPECT_EQ(status.expected(), "compute capability 8.0 or newer");
}

TEST_F(CudaRuntime, TakesMemoryOfTheDeviceAndManagedMemory) {
  runtime.pointer = {cudaMemoryTypeDevice, runtime.device};
  EXPECT_TRUE(validate_memory("q", &number_).ok());
  // Kernels of every device may use managed memory.
  runtime.pointer = {cudaMemoryTypeManaged, runtime.device + 1};
  EXPECT_TRUE(validate_memory("q", &number_).ok());
}

TEST_F(CudaRuntime, RefusesMemoryOfTheHostAndOfAnotherDevice) {
  for (const cudaMemoryType type : {cudaMemoryTypeUnregistered, cudaMemoryTypeHost}) {
    runtime.pointer = {type, 0};
    expect(validate_memory("q", &number_), "q", "memory of the host");
  }
  runtime.device = 1;
  runtime.pointer = {cudaMemoryTypeDevice, 2};
  const Status status = validate_memory("bias", &number_);
  expect(status, "bias", "memory of device 2");
  EXPECT_EQ(status.expected(), "memory of the current device 1");
  runtime.of_pointer = cudaErrorInvalidValue;
  expect(validate_memory("k", &number_), "k", "cudaErrorInvalidValue (1): what CUDA says of it");
}

TEST_F(CudaRuntime, RefusesAStreamInAnErrorState) {
  EXPECT_TRUE(validate_stream(nullptr).ok());
  runtime.capture = cudaStreamCaptureStatusActive;
  EXPECT_TRUE(validate_stream(nullptr).ok());
  runtime.capture = cudaStreamCaptureStatusInvalidated;
  expect(validate_stream(nullptr), "stream",
         "cudaErrorStreamCaptureInvalidated (901): what CUDA says of it");
  runtime.of_stream = cudaErrorIllegalAddress;
  expect(validate_stream(nullptr), "stream", "cudaErrorIllegalAddress (700): what CUDA says of it");
}

TEST_F(CudaRuntime, NamesTheErrorOfALaunch) {
  EXPECT_TRUE(status_of(0).ok());
  runtime.last = cudaErrorIllegalAddress;
  expect(status_of(700), "stream", "cudaErrorIllegalAddress (700): what CUDA says of it");
}

}  // namespace
}  // namespace multihead::cuda
