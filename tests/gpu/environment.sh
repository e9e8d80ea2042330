# shellcheck shell=bash
# Sourced at the root of the tree by the scripts that run on a machine with a GPU: finds the stage and the libraries there,
# or ends the script with a sentence that says what is missing.
#   STAGE=build/gpu_stage    what tests/gpu/stage.sh made
# The CUDA libraries come from the system's toolkit, or from the Python packages of PyTorch. Never a folder `stubs`.

stage=${STAGE:-build/gpu_stage}
missing() {  # exit code, sentence
  echo "$0: not run: $2" >&2
  exit "$1"
}
nvidia-smi >/dev/null 2>&1 || missing 79 "this machine has no GPU (nvidia-smi does not run)"
command -v python3 >/dev/null || missing 79 "this machine has no python3, which compares and writes results"
if [ -z "${STAGE:-}" ] && [ build/release/lib/engine/plugins/libengine_cuda_ops.so -nt "$stage/commit" ]; then
  tests/gpu/stage.sh || exit
fi
[ -f "$stage/commit" ] ||
  missing 66 "there is no $stage: run tests/gpu/stage.sh where the project is built and bring that folder along"
stage=$(cd "$stage" && pwd)
gpu_wheels=$(python3 - <<'PYTHON'
import glob, importlib.util, os

spec = importlib.util.find_spec("nvidia")  # a namespace package: it has search locations only
roots = list(spec.submodule_search_locations) if spec else []
print(":".join(f for name in ("nccl", "cu13", "cudnn") for root in roots for f in glob.glob(os.path.join(root, name, "lib"))))
PYTHON
) || gpu_wheels=
gpu_libraries=$gpu_wheels${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
for folder in /usr/local/cuda/lib64 /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
  [ ! -d "$folder" ] || gpu_libraries+=:$folder
done
export stage gpu_libraries ENGINE_TEST_GOLDEN=$stage/golden

# Runs a program of the stage, whose libraries are not for others, such as Python.
staged() { LD_LIBRARY_PATH=$stage/lib:$gpu_libraries "$@"; }

# Versions of everything that a result depends on, one per line.
gpu_report() {
  echo "date $(date -u +%Y-%m-%dT%H:%MZ)"
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader | sed 's/^/gpu /'
  echo "commit $(cat "$stage/commit")"
  LD_LIBRARY_PATH=$gpu_libraries python3 - <<'PYTHON'
import ctypes

def version(library, function, size=None):
    try:
        loaded = ctypes.CDLL(library)
        if size:
            getattr(loaded, function).restype = size
            return getattr(loaded, function)()
        number = ctypes.c_int(0)
        getattr(loaded, function)(ctypes.byref(number))
        return number.value
    except (OSError, AttributeError) as error:
        return f"missing ({error})"

print("driver for CUDA", version("libcuda.so.1", "cuDriverGetVersion"))
print("cudart", version("libcudart.so.13", "cudaRuntimeGetVersion"))
print("cublasLt", version("libcublasLt.so.13", "cublasLtGetVersion", ctypes.c_size_t))
print("cudnn", version("libcudnn.so.9", "cudnnGetVersion", ctypes.c_size_t))
print("nccl", version("libnccl.so.2", "ncclGetVersion"))
PYTHON
  timeout 60 python3 -c 'import torch; print("torch", torch.__version__, "cuda", torch.version.cuda)' 2>/dev/null || echo "torch none"
  local file
  for file in "$stage"/bin/* "$stage"/plugins/*; do
    [[ $file != *libengine_cpu_ops* ]] || continue
    staged ldd "$file" 2>/dev/null | awk -v name="$(basename "$file")" '/not found/ {print "missing for " name ": " $1}'
  done
}
