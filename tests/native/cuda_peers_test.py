"""The parts of native/bench/cuda_peers.py that need neither PyTorch nor a GPU, with a bench and peers that are made up."""
import io
import json
import os
import stat
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'native', 'bench'))
import cuda_peers  # noqa: E402

CASE = {
    'name': 'forward/d128-1k/causal/bf16/cuda',
    'batch': 16,
    'heads': 16,
    'kv_heads': 4,
    'queries': 1024,
    'keys': 1024,
    'width': 128,
    'mask': 'causal',
    'q_dtype': 'bf16',
    'dtype': 'bf16',
}
DECODE = {**CASE, 'queries': 1, 'mask': 'full'}

BENCH = """#!{python}
import json, os, sys
options = dict(part.split('=', 1) for part in sys.argv[1:] if '=' in part)
if '--benchmark_list_tests' in sys.argv:
    print('a/b\\nc/d')
elif options['--benchmark_filter'] == '^c/d$':
    print(json.dumps({{'benchmarks': [{{'error_occurred': True, 'error_message': 'no memory'}}]}}))
elif options['--benchmark_filter'] == '^e/f$':
    sys.exit('it broke')
else:
    stem = os.path.join(options['--save'], options['--benchmark_filter'].strip('^$').replace('/', '-'))
    with open(stem + '.json', 'w') as file:
        json.dump({case}, file)
    print(json.dumps({{'benchmarks': [{{'us': 2000.0}}]}}))
"""


class Peers:
    """Answers the same for every case."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def run(self, case, stem):
        assert os.path.exists(stem + '.json')
        return self.answers.pop(0)


class CudaPeers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.bench = os.path.join(self.folder, 'bench')
        with open(self.bench, 'w', encoding='utf8') as file:
            file.write(BENCH.format(python=sys.executable, case=CASE))
        os.chmod(self.bench, os.stat(self.bench).st_mode | stat.S_IXUSR)

    def compare(self, peers, rounds=1, name='a/b'):
        return cuda_peers.compare(self.bench, name, peers, rounds, self.folder)

    def run_main(self, *args, peers=None):
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), mock.patch.object(cuda_peers, 'torch_peers', lambda: peers):
            code = cuda_peers.main([f'--bench={self.bench}', *args])
        return code, out.getvalue(), err.getvalue()

    def test_costs_are_those_of_the_bench(self):
        self.assertEqual(cuda_peers.operations(CASE), 4 * 16 * 16 * 128 * 1024 * 1024 / 2)
        self.assertEqual(cuda_peers.bytes_read(DECODE), 2 * 16 * 4 * 1024 * 128 * 2)
        self.assertEqual(cuda_peers.rate(CASE, 1e-3), '68.7 TFLOP/s')
        self.assertEqual(cuda_peers.rate(DECODE, 1e-4), '336 GB/s')
        self.assertEqual([cuda_peers.copies_of(size, 1000) for size in (100, 99, 10**12, 1)], [40, 41, 2, 256])

    def test_cases_that_the_peers_cannot_express_are_named(self):
        self.assertIsNone(cuda_peers.objection(CASE))
        self.assertIsNone(cuda_peers.objection(DECODE))
        self.assertIn('bf16 or all f16', cuda_peers.objection({**CASE, 'dtype': 'f32', 'q_dtype': 'f32'}))
        self.assertIn('bf16 or all f16', cuda_peers.objection({**CASE, 'q_dtype': 'f32'}))
        self.assertIn('gradients', cuda_peers.objection({**CASE, 'name': 'backward/d128-1k/causal/bf16/cuda'}))
        self.assertIn('gradients', cuda_peers.compare('/no/bench', 'backward/d128-1k/causal/bf16/cuda', None, 1, '')['message'])
        self.assertIn('window', cuda_peers.objection({**CASE, 'mask': 'window'}))
        self.assertIn('aligned', cuda_peers.objection({**CASE, 'queries': 512}))

    def test_medians_ratios_and_the_last_differences(self):
        answers = [{'A': (seconds, 0.001), 'B': 'does not run it'} for seconds in (0.001, 0.009, 0.005)]
        row = self.compare(Peers(*answers), rounds=3)
        self.assertEqual(row['peers']['B'], {'message': 'does not run it'})
        self.assertAlmostEqual(row['peers']['A']['ratio'], 2.5)
        self.assertEqual(row['peers']['A']['difference'], 0.001)
        self.assertFalse(cuda_peers.differs(row))
        self.assertIn('A 5000.0 us, 13.7 TFLOP/s, 2.50x ours, largest difference 1.0e-03', cuda_peers.text_of(row))

    def test_a_difference_beyond_rounding_and_nan_are_reported(self):
        for difference in (0.5, float('nan'), float('inf')):
            row = self.compare(Peers({'A': (0.001, difference)}))
            self.assertTrue(cuda_peers.differs(row))
            self.assertTrue(cuda_peers.text_of(row).endswith('DIFFERS'))

    def test_failures_of_the_bench_are_told(self):
        with self.assertRaisesRegex(cuda_peers.Failure, 'no memory'):
            self.compare(Peers(), name='c/d')
        with self.assertRaisesRegex(cuda_peers.Failure, 'ended with 1: it broke'):
            self.compare(Peers(), name='e/f')

    def test_the_whole_run(self):
        json_file = os.path.join(self.folder, 'rows.json')
        code, out, _ = self.run_main(f'--json={json_file}', peers=Peers({'A': (0.001, 0.0)}))
        self.assertEqual(code, 1)  # the second case has no memory
        self.assertEqual([line.split(':')[0] for line in out.splitlines()], ['a/b', 'c/d'])
        with open(json_file, encoding='utf8') as file:
            self.assertEqual(json.load(file)[0]['peers']['A']['ratio'], 0.5)

    def test_wrong_arguments_give_2(self):
        for args in (['--rounds=0'], ['--rounds=x'], ['--bench=/no/such'], ['--fliter=x']):
            with self.assertRaises(SystemExit) as ended, redirect_stderr(io.StringIO()):
                cuda_peers.main([f'--bench={self.bench}', *args])
            self.assertEqual(ended.exception.code, 2)

    def test_without_pytorch_one_line_says_so(self):
        err = io.StringIO()
        with redirect_stderr(err), mock.patch.dict(sys.modules, {'torch': None}):
            self.assertEqual(cuda_peers.main([f'--bench={self.bench}']), 3)
        self.assertRegex(err.getvalue(), r'^PyTorch 2.3 or newer cannot be imported \(.*\): nothing is compared\n$')

    def test_without_a_gpu_one_line_says_so(self):
        torch, err = mock.MagicMock(), io.StringIO()
        torch.cuda.is_available.return_value = False
        modules = {'torch': torch, 'torch.nn': torch.nn, 'torch.nn.attention': torch.nn.attention}
        with redirect_stderr(err), mock.patch.dict(sys.modules, modules):
            self.assertEqual(cuda_peers.main([f'--bench={self.bench}']), 3)
        self.assertEqual(err.getvalue(), 'PyTorch finds no GPU that it can use: nothing is compared\n')


if __name__ == '__main__':
    unittest.main()
