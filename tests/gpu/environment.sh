# Sourced by the scripts of this folder on a machine with a GPU: where its libraries are.
#   . tests/gpu/environment.sh STAGE
# The CUDA libraries come from the system's toolkit, or from the Python packages of PyTorch. Never a folder `stubs`.

gpu_stage=$(cd "$1" && pwd)
gpu_wheels=$(python3 - <<'PYTHON'
import glob, importlib.util, os

spec = importlib.util.find_spec("nvidia")  # a namespace package: it has search locations only
roots = list(spec.submodule_search_locations) if spec else []
print(":".join(f for name in ("nccl", "cu13", "cudnn") for root in roots for f in glob.glob(os.path.join(root, name, "lib"))))
PYTHON
) || gpu_wheels=
gpu_system=
for folder in /usr/local/cuda/lib64 /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
  [ -d "$folder" ] && gpu_system+=":$folder"
done
export LD_LIBRARY_PATH="$gpu_stage/lib${gpu_wheels:+:$gpu_wheels}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}$gpu_system"
export ENGINE_TEST_GOLDEN="$gpu_stage/golden"

# Versions of everything that a result depends on, one per line.
gpu_report() {
  echo "date $(date -u +%Y-%m-%dT%H:%MZ)"
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv,noheader 2>/dev/null |
    sed 's/^/gpu /' || echo "gpu none: nvidia-smi does not run"
  python3 - <<'PYTHON'
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
try:
    import torch
    print("torch", torch.__version__, "cuda", torch.version.cuda)
except ImportError:
    print("torch none")
PYTHON
  [ -f "$gpu_stage/commit" ] && echo "commit $(cat "$gpu_stage/commit")"
  local file
  for file in "$gpu_stage"/bin/* "$gpu_stage"/plugins/*; do
    ldd "$file" 2>/dev/null | awk -v name="$(basename "$file")" '/not found/ {print "missing for " name ": " $1}'
  done
}
