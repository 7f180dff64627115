#!/usr/bin/env python3
"""Times multihead on a GPU in turns with cuDNN's attention and FlashAttention, and compares the outputs.

    native/bench/cuda_peers.py [--bench PROGRAM] [--filter REGEX] [--rounds N] [--json FILE]

The peers are backends of PyTorch's scaled_dot_product_attention. Each case of `multihead-bench --device=cuda` that they
can express runs in its own process, which saves inputs and output; then the peers run on the same inputs. Both sides are
timed alike: CUDA events around batches of at least a millisecond, copies of the inputs in turns that exceed the L2 cache
four times, median of the batches.

A row says the microseconds of a call, TFLOP/s (a causal call counts half) or, of a decode step, GB/s of keys and values,
and for each peer its time divided by multihead's and the largest difference of the outputs.

Exit code: 0; 1 if an output differs by more than rounding or a case failed; 2 for wrong arguments; 3 if there is no PyTorch,
or no GPU that it can use.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(ROOT, 'build', 'cuda', 'native', 'multihead-bench')
FILTER = r'^(forward/(d64|d128|d256|llama3)|decode/llama3)[^/]*/(full|causal)/(bf16|f16)/'
# Largest difference that rounding explains: both sides round weights and outputs to the dtype, but sum in another order.
ALLOWED = {'bf16': 2.0**-6, 'f16': 2.0**-9}
BATCH_SECONDS = 1e-3
BATCHES = 30


class Failure(Exception):
    """The reason why a case did not run."""


def objection_to(name):
    """Returns the reason why the peers do not support a case, as far as its name tells, or None."""
    return 'only outputs are compared, not gradients' if name.startswith('backward/') else None


def objection(case):
    """Returns the reason why the peers do not support a case, or None."""
    if wrong := objection_to(case['name']):
        return wrong
    if case['dtype'] not in ALLOWED or case['q_dtype'] != case['dtype']:
        return 'q, k and v are not all bf16 or all f16'
    if case['mask'] not in ('full', 'causal'):
        return f'the mask is {case["mask"]}'
    # is_causal aligns the mask top left, multihead's cases align it bottom right.
    if case['mask'] == 'causal' and case['queries'] != case['keys']:
        return 'causal order is aligned differently'
    return None


def operations(case):
    """Returns the ideal floating-point operations of a call."""
    pairs = case['queries'] * case['keys'] * (0.5 if case['mask'] == 'causal' else 1)
    return 4 * case['batch'] * case['heads'] * case['width'] * pairs


def bytes_read(case):
    """Returns the bytes of 16-bit keys and values."""
    return 2 * 2 * case['batch'] * case['kv_heads'] * case['keys'] * case['width']


def rate(case, seconds):
    """Returns the rate as text: TFLOP/s, or GB/s for one query."""
    if case['queries'] == 1:
        return f'{bytes_read(case) / seconds * 1e-9:.0f} GB/s'
    return f'{operations(case) / seconds * 1e-12:.1f} TFLOP/s'


def copies_of(bytes_of_inputs, l2_bytes):
    """Returns the number of input copies that calls use in turns, like rotated_copies() of device_work.h."""
    return max(2, min(256, -(-4 * l2_bytes // bytes_of_inputs)))


def run_ours(bench, name, folder):
    """Runs multihead-bench once; returns seconds per call, the case, and the stem of the saved files."""
    command = [bench, '--device=cuda', '--alone', f'--benchmark_filter=^{name}$', '--benchmark_format=json', f'--save={folder}']
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        result = json.loads(ran.stdout)['benchmarks'][0]
    except (ValueError, LookupError):
        raise Failure(f'{bench} ended with {ran.returncode}: {ran.stderr.strip()[-300:]}') from None
    if result.get('error_occurred'):
        raise Failure(result['error_message'])
    stem = os.path.join(folder, name.replace('/', '-'))
    with open(stem + '.json', encoding='utf8') as file:
        case = json.load(file)
    return result['us'] * 1e-6, case, stem


def compare(bench, name, peers, rounds, folder):
    """Returns a row: { name, us, rate, peers: { label: { us, ratio, difference } or { message } } }, or { name, message }."""
    if wrong := objection_to(name):
        return {'name': name, 'message': wrong}
    ours, theirs, differences = [], {}, {}
    for _ in range(rounds):
        seconds, case, stem = run_ours(bench, name, folder)
        ours.append(seconds)
        if wrong := objection(case):
            return {'name': name, 'message': wrong}
        for label, result in peers.run(case, stem).items():
            if isinstance(result, str):
                differences.setdefault(label, result)
                continue
            theirs.setdefault(label, []).append(result[0])
            differences[label] = result[1]
    us = statistics.median(ours)
    row = {'name': name, 'dtype': case['dtype'], 'us': us * 1e6, 'rate': rate(case, us), 'peers': {}}
    for label, difference in differences.items():
        if label not in theirs:
            row['peers'][label] = {'message': difference}
            continue
        seconds = statistics.median(theirs[label])
        row['peers'][label] = {'us': seconds * 1e6, 'rate': rate(case, seconds), 'ratio': seconds / us, 'difference': difference}
    return row


def differs(row):
    """True if an output differs by more than rounding, or is NaN."""
    limits = [(peer['difference'], ALLOWED[row['dtype']]) for peer in row.get('peers', {}).values() if 'difference' in peer]
    return any(not difference <= limit for difference, limit in limits)


def text_of(row):
    """Returns a row as text."""
    if 'message' in row:
        return f'{row["name"]}: {row["message"]}'
    text = f'{row["name"]}: {row["us"]:.1f} us, {row["rate"]}'
    for label, peer in row['peers'].items():
        if 'message' in peer:
            text += f'; {label}: {peer["message"]}'
            continue
        text += f'; {label} {peer["us"]:.1f} us, {peer["rate"]}, {peer["ratio"]:.2f}x ours, largest difference {peer["difference"]:.1e}'
    return text + ('  DIFFERS' if differs(row) else '')


class TorchPeers:
    """cuDNN's attention and FlashAttention through PyTorch."""

    def __init__(self, torch):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.torch = torch
        self.sdpa_kernel = sdpa_kernel
        self.backends = {'cuDNN': SDPBackend.CUDNN_ATTENTION, 'FlashAttention': SDPBackend.FLASH_ATTENTION}
        # If PyTorch does not report the size, assume 128 MiB, the L2 cache of the largest GPU so far.
        l2_bytes = getattr(torch.cuda.get_device_properties(0), 'L2_cache_size', None)
        self.l2_bytes = l2_bytes or 128 << 20
        self.flush = torch.empty(2 * self.l2_bytes, dtype=torch.uint8, device='cuda')

    def run(self, case, stem):
        """Returns { label: (seconds per call, largest difference from multihead's output), or the reason why it failed }."""
        torch = self.torch
        dtype = {'bf16': torch.bfloat16, 'f16': torch.float16}[case['dtype']]
        q = self.read(stem + '.q', dtype, case, case['heads'], case['queries'])
        k = self.read(stem + '.k', dtype, case, case['kv_heads'], case['keys'])
        v = self.read(stem + '.v', dtype, case, case['kv_heads'], case['keys'])
        ours = self.read(stem + '.f32', torch.float32, case, case['heads'], case['queries'])
        copies = copies_of(sum(tensor.numel() * 2 for tensor in (q, k, v)), self.l2_bytes)
        inputs = [(q, k, v)] + [(q.clone(), k.clone(), v.clone()) for _ in range(copies - 1)]
        results = {}
        for label, backend in self.backends.items():
            try:
                with torch.inference_mode(), self.sdpa_kernel([backend]):
                    results[label] = self.time(case, inputs, ours)
            except RuntimeError as error:
                results[label] = 'does not run it: ' + (str(error).strip().splitlines() or ['no reason given'])[0]
        return results

    def read(self, path, dtype, case, heads, rows):
        with open(path, 'rb') as file:
            values = self.torch.frombuffer(bytearray(file.read()), dtype=dtype)
        return values.reshape(case['batch'], heads, rows, case['width']).cuda()

    def time(self, case, inputs, ours):
        attend = self.torch.nn.functional.scaled_dot_product_attention
        options = {'is_causal': case['mask'] == 'causal'}
        if case['heads'] != case['kv_heads']:
            options['enable_gqa'] = True

        def batch(calls):
            events = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
            self.flush.zero_()
            events[0].record()
            for call in range(calls):
                out = attend(*inputs[call % len(inputs)], **options)
            events[1].record()
            events[1].synchronize()
            return events[0].elapsed_time(events[1]) * 1e-3 / calls, out

        batch(5)  # warm-up: loads the kernels
        calls = max(1, min(200, round(BATCH_SECONDS / batch(5)[0])))
        samples = [batch(calls) for _ in range(BATCHES)]
        difference = (samples[-1][1].float() - ours).abs().max().item()
        return statistics.median(seconds for seconds, _ in samples), difference


def arguments_of(args):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--bench', default=BENCH, help='multihead-bench, built with CUDA')
    parser.add_argument('--filter', default=FILTER, help='names of cases, as --benchmark_filter')
    parser.add_argument('--rounds', type=int, default=1, help='turns of each side; medians of them are printed')
    parser.add_argument('--json', help='a file for the rows')
    options = parser.parse_args(args)
    if options.rounds < 1:
        parser.error(f'--rounds: expected 1 or more, got {options.rounds}')
    if not os.access(options.bench, os.X_OK):
        parser.error(f'--bench: expected a program, got {options.bench}')
    return options


def torch_peers():
    """Returns the peers; raises Failure if there are none."""
    try:
        import torch
        import torch.nn.attention
    except ImportError as error:
        raise Failure(f'PyTorch 2.3 or newer cannot be imported ({error}): nothing is compared') from None
    if not torch.cuda.is_available():
        raise Failure('PyTorch finds no GPU that it can use: nothing is compared')
    return TorchPeers(torch)


def names_of(bench, pattern):
    command = [bench, '--device=cuda', '--benchmark_list_tests', f'--benchmark_filter={pattern}']
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise Failure(f'--filter: {(ran.stderr or ran.stdout).strip()}')
    return ran.stdout.split()


def main(args):
    options = arguments_of(args)
    try:
        peers = torch_peers()
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 3
    try:
        names = names_of(options.bench, options.filter)
    except Failure as failure:
        print(failure, file=sys.stderr)
        return 2
    rows = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix='multihead-') as folder:
            try:
                row = compare(options.bench, name, peers, options.rounds, folder)
            except Failure as failure:
                row = {'name': name, 'message': str(failure), 'failed': True}
        rows.append(row)
        print(text_of(row), flush=True)
        if options.json:  # after each row, in case the run is cut off
            with open(options.json, 'w', encoding='utf8') as file:
                json.dump(rows, file, indent=2)
    return 1 if any(differs(row) or row.get('failed') for row in rows) else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
