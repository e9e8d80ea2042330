# The training runs that are compared between CPU and GPU. Sourced: gpu_runs, and gpu_run_words RUN, which sets the array
# `words` (after `engine run`) and `optimizer`. Each takes ten steps of 8 samples over all ranks.

gpu_runs=(mlp cnn resnet gpt)
gpu_run_words() {
  local images="--set data.synthetic.samples=256 --set data.synthetic.eval_samples=64"
  local common="--set train.steps=10 --set train.evaluate_samples=64 --set train.evaluate_every=0 --set train.checkpoint_every=0 --set output.checkpoint= --set output.sample_bytes=0"
  local text
  optimizer=sgd
  case $1 in
    mlp) text="$images --set data.synthetic.shape=64 --set model.mlp.hidden=96,80" ;;
    cnn) text="$images --set data.synthetic.shape=1,12,12 --set model.cnn.channels=8,16" ;;
    resnet) text="$images --set data.synthetic.shape=3,16,16 --set model.resnet.blocks=1,1 --set model.resnet.width=8" ;;
    gpt) text="tests/gpu/gpt.pbtxt"; optimizer=adamw ;;
  esac
  read -ra words <<<"$text $common"
}
