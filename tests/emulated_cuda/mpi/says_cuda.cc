// Preloaded: an Open MPI that takes memory of devices, as emulated memory is the host's.
extern "C" __attribute__((visibility("default"))) int MPIX_Query_cuda_support() {
  return 1;
}
