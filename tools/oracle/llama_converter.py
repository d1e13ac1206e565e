#!/usr/bin/env python3
"""Runs llama.cpp's convert_hf_to_gguf.py on a folder, also on one without a tokenizer.

  llama_converter.py SOURCE FOLDER OUT [its options, such as --outtype f32]

SOURCE: llama.cpp's source. The file of a folder without a tokenizer has none either.
"""
import argparse
import json
import os
import sys
import tempfile

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "qwen.tiktoken")


def has_tokenizer(folder):
    return any(os.path.exists(os.path.join(folder, name)) for name in TOKENIZER_FILES)


def read_config(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def with_empty_tokenizer(folder, copy):
    """Some classes of the converter count the words of tokenizer.json."""
    for name in os.listdir(folder):
        os.symlink(os.path.abspath(os.path.join(folder, name)), os.path.join(copy, name))
    config = read_config(folder)
    n = config.get("text_config", config).get("vocab_size", 0)
    with open(os.path.join(copy, "tokenizer.json"), "w", encoding="utf-8") as file:
        json.dump({"model": {"vocab": {str(i): i for i in range(n)}}, "added_tokens": []}, file)
    return copy


def load(source):
    """Imports the converter from llama.cpp's source."""
    os.environ.update(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="")
    sys.path[:0] = [source, os.path.join(source, "gguf-py")]
    import convert_hf_to_gguf
    import torch
    from conversion import base
    load_hparams = base.ModelBase.load_hparams

    def with_own_names(path, is_mistral_format):
        """transformers 5 renames settings that the converter looks for: the file's own names remain."""
        config = read_config(path)
        return {**load_hparams(path, is_mistral_format), **config, **config.get("text_config", {})}
    base.ModelBase.load_hparams = staticmethod(with_own_names)
    mend_baichuan()
    torch.set_num_threads(1)
    return convert_hf_to_gguf


def mend_baichuan():
    """Its class calls itself without end for tensors other than q, k and v: these are what the class above it makes of them."""
    from conversion import baichuan
    modify_tensors = baichuan.BaichuanModel.modify_tensors

    def modify(self, data, name, layer):
        if name.endswith("W_pack.weight"):
            yield from modify_tensors(self, data, name, layer)
        else:
            yield self.map_tensor_name(name), data
    baichuan.BaichuanModel.modify_tensors = modify


def set_no_vocab(self):
    self._set_vocab_none()
    self.gguf_writer.add_vocab_size(self.hparams["vocab_size"])


def convert(converter, folder, out, options):
    """Call it once in a process."""
    find = converter.get_model_class

    def without_vocab(*names, **more):
        found = find(*names, **more)
        # Some classes leave the work to one inside.
        for kind in (found, *(inner for inner in vars(found).values() if isinstance(inner, type))):
            kind.set_vocab = set_no_vocab
        return found
    with tempfile.TemporaryDirectory() as copy:
        if not has_tokenizer(folder):
            converter.get_model_class = without_vocab
            folder = with_empty_tokenizer(folder, copy)
        sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", out, *options]
        converter.main()


def convert_apart(converter, folder, out, options):
    """In a process of its own, without importing everything again. Raises ValueError with the reason of a refusal."""
    with tempfile.TemporaryFile("w+") as log:
        pid = os.fork()
        if pid == 0:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            status = 1
            try:
                convert(converter, folder, out, options)
                status = 0
            except (Exception, SystemExit) as e:
                print(f"{type(e).__name__}: {e}", file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        log.seek(0)
        lines = log.read().strip().splitlines() or ["no message"]
    if status != 0 or not os.path.exists(out):
        raise ValueError(lines[-1][:300])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("folder")
    parser.add_argument("out")
    args, options = parser.parse_known_args()
    convert(load(args.source), args.folder, args.out, options)


if __name__ == "__main__":
    main()
