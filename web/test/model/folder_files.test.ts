import { describe, expect, it } from 'vitest';
import { allBytes, modelFiles, select, weightBytes } from '../../src/model/folder_files.js';
import type { GivenFile } from '../../src/model/messages.js';

const filesOf = (...paths: string[]): GivenFile[] => paths.map((path) => ({ path, file: new File(['12345'], path.split('/').at(-1)!) }));
const pathsOf = (files: readonly GivenFile[]): string[] => files.map(({ path }) => path).sort();

describe('modelFiles', () => {
  it('finds those of the uppermost folder with config.json, and nothing that is not read', () => {
    const all = filesOf(
      ...['MiniLM/README.md', 'MiniLM/config.json', 'MiniLM/model.safetensors', 'MiniLM/tokenizer.json', 'MiniLM/pytorch_model.bin'],
      ...['MiniLM/1_Pooling/config.json', 'MiniLM/onnx/config.json', 'MiniLM/onnx/model.safetensors', 'MiniLM/vocab.txt'],
    );
    const { folder, files } = modelFiles(all);
    expect(folder).toBe('MiniLM');
    expect(pathsOf(files)).toEqual(['1_Pooling/config.json', 'config.json', 'model.safetensors', 'tokenizer.json']);
  });

  it('takes files without a folder', () => {
    const { folder, files } = modelFiles(filesOf('config.json', 'model-1.safetensors', 'model-2.safetensors', 'model.safetensors.index.json'));
    expect([folder, files.length]).toEqual(['', 4]);
  });
});

describe('a GGUF file', () => {
  it('is a model by itself, unless config.json is beside it', () => {
    const alone = select(filesOf('x/README.md', 'x/a.gguf', 'x/b.gguf', 'x/tokenizer.json'), undefined, undefined)!;
    expect([pathsOf(alone.files.files), alone.missing, weightBytes(alone.files)]).toEqual([['a.gguf'], '', 5]);
    expect(select(filesOf('a.gguf'), undefined, undefined)!.files.name).toBe('a.gguf');
    expect(select(filesOf('tokenizer.json'), undefined, alone.files)!.missing).toBe('');
    const both = select(filesOf('config.json', 'a.safetensors', 'a.gguf'), undefined, alone.files)!;
    expect(pathsOf(both.files.files)).toEqual(['a.safetensors', 'config.json']);
  });
});

describe('select', () => {
  const whole = select(filesOf('config.json', 'a.safetensors'), undefined, undefined)!;

  it('names a model by its folder, else by its weights', () => {
    expect([whole.files.name, whole.missing]).toEqual(['a.safetensors', '']);
    expect(select(filesOf('x/y/config.json', 'x/y/b.safetensors'), undefined, undefined)!.files.name).toBe('y');
    expect([weightBytes(whole.files), allBytes(whole.files)]).toEqual([5, 10]);
  });

  it('says what is missing, and takes it with the next choice', () => {
    const first = select(filesOf('b.safetensors'), undefined, whole.files)!;
    expect(first.missing).toBe('config.json');
    const second = select(filesOf('config.json'), first.files, whole.files)!;
    expect([second.missing, pathsOf(second.files.files), second.files.name]).toEqual(['', ['b.safetensors', 'config.json'], 'b.safetensors']);
    expect(select(filesOf('config.json'), undefined, whole.files)!.missing).toBe('its .safetensors file');
  });

  it('adds a tokenizer to the model in use', () => {
    const added = select(filesOf('tokenizer.json'), undefined, whole.files)!;
    expect([added.missing, added.files.name]).toEqual(['', 'a.safetensors']);
    expect(pathsOf(added.files.files)).toEqual(['a.safetensors', 'config.json', 'tokenizer.json']);
    expect(select(filesOf('tokenizer.json'), undefined, undefined)!.missing).toBe('config.json');
  });

  it('finds nothing among other files', () => {
    expect(select(filesOf('notes.txt', 'model.bin'), undefined, whole.files)).toBeUndefined();
  });
});
