// The package's command, `npx multihead`: its commands, and what becomes of errors.

import type { MultiheadError } from '../runtime/errors.js';
import { printable, quoted } from '../runtime/text.js';
import { ablate, ablateOptions, analysisHelp, attribute, attributeOptions, lens, lensOptions, patch, patchOptions } from './analyses.js';
import { flagOf, helpOf, type Options, UsageError } from './arguments.js';
import { bench, benchHelp, benchOptions } from './bench.js';
import { convert, convertHelp, convertOptions } from './convert.js';
import { embed, embedOptions } from './embed.js';
import { heads, headsHelp, headsOptions } from './heads.js';
import { Interrupt, Interrupted, type Signals } from './interrupt.js';
import { exitCodes, type Input, Output, OutputError, type Stream } from './output.js';
import { run, runOptions } from './run.js';
import { OpenError, type Session } from './session.js';

interface Command {
  readonly usage: string;
  readonly help: string;
  readonly options: Options;
  /** The rest of the help. */
  readonly more?: string;
  readonly run: (args: readonly string[], session: Session) => Promise<void>;
}

const commands: Readonly<Record<string, Command>> = {
  run: { usage: 'run FOLDER [TEXT]', help: 'continues the text, or standard input, token by token', options: runOptions, run },
  embed: { usage: 'embed FOLDER TEXT…', help: 'cosine similarities of texts', options: embedOptions, run: embed },
  heads: { usage: 'heads FOLDER TEXT', help: 'what every head looks at', options: headsOptions, more: headsHelp, run: heads },
  lens: { usage: 'lens FOLDER TEXT', help: 'what every layer would predict', options: lensOptions, run: lens },
  patch: {
    usage: 'patch FOLDER CLEAN CORRUPT',
    help: 'how a metric changes with parts of another run',
    options: patchOptions,
    more: analysisHelp,
    run: patch,
  },
  ablate: { usage: 'ablate FOLDER TEXT…', help: 'how a metric changes without each head', options: ablateOptions, more: analysisHelp, run: ablate },
  attribute: {
    usage: 'attribute FOLDER CLEAN [CORRUPT]',
    help: 'what each part adds to a metric, or an estimate of patch',
    options: attributeOptions,
    more: analysisHelp,
    run: attribute,
  },
  convert: {
    usage: 'convert FOLDER OUT',
    help: 'writes a folder with smaller weights',
    options: convertOptions,
    more: convertHelp,
    run: convert,
  },
  bench: { usage: 'bench', help: 'how fast this machine is, in a minute', options: benchOptions, more: benchHelp, run: bench },
};

const overview = `usage: multihead COMMAND [FOLDER] [TEXT] [OPTIONS]

FOLDER is a model as Hugging Face stores it: config.json, safetensors files and, for text, tokenizer.json. Text needs the
package @huggingface/tokenizers; --ids takes token ids without it. FOLDER may be a name of the hub, such as
HuggingFaceTB/SmolLM2-135M, whose files are fetched once and kept, or an address from which the files can be fetched, or a
GGUF file: a path, an address, or ORG/NAME/FILE.gguf of the hub.

${Object.values(commands)
  .map(({ usage, help }) => `  multihead ${usage.padEnd(34)}${help}\n`)
  .join('')}
multihead COMMAND --help lists the options; multihead --version prints the version.
Exit code: 0; 1 if a run failed; 2 for wrong arguments, or a folder that is no model or cannot be read; 3 if an output
cannot be written; 130 after Ctrl-C.
`;

const helpFor = ({ usage, help, options, more }: Command): string =>
  `usage: multihead ${usage} [OPTIONS]: ${help}\n\n${helpOf(options)}${more === undefined ? '' : `\n${more}`}`;

/** The surroundings of the command. */
export interface Surroundings extends Pick<Session, 'openModel' | 'saveModel' | 'openSparseAutoencoder' | 'loadBench' | 'version'> {
  readonly process: Signals & { readonly stdin: Input; readonly stdout: Stream; readonly stderr: Stream };
}

/** The command has no copy of the class: openModel() is in a file of its own. */
const isMultiheadError = (error: unknown): error is MultiheadError => error instanceof Error && error.name === 'MultiheadError';

/** The exit code for an error, and the line to print. */
function exitOf(error: unknown, options: Options): readonly [code: number, message?: string] {
  if (error instanceof UsageError) return [exitCodes.usage, error.message];
  if (error instanceof OutputError) return error.isClosed ? [exitCodes.ok] : [exitCodes.output, error.message];
  if (error instanceof Interrupted) return [exitCodes.interrupted];
  const failure = error instanceof OpenError ? error.cause : error;
  if (!isMultiheadError(failure)) {
    // A fault of the package: the stack says where.
    return [exitCodes.failed, failure instanceof Error ? (failure.stack ?? failure.message) : String(failure)];
  }
  const { code, expected, got } = failure;
  const name = failure.argument.replace('metric.', '').replace('decoderInputs', 'decoderIds');
  if (code === 'E_ABORTED') return [exitCodes.interrupted];
  const isFlag = code === 'E_OPTION' && Object.hasOwn(options, name);
  const message = isFlag ? `${flagOf(name)}: expected ${expected}, got ${got}` : (error as Error).message;
  return [['E_OPTION', 'E_SHAPE', 'E_FORMAT', 'E_LOAD'].includes(code) ? exitCodes.usage : exitCodes.failed, printable(message, Infinity)];
}

/** Runs the command. Returns the exit code. */
export async function main(args: readonly string[], { process, ...given }: Surroundings): Promise<number> {
  const output = new Output(process.stdout);
  process.stderr.on('error', () => {});
  const [name = '', ...rest] = args;
  const command = Object.hasOwn(commands, name) ? commands[name] : undefined;
  const end = rest.indexOf('--');
  const asksHelp = (list: readonly string[]): boolean => list.includes('--help') || list.includes('-h');
  try {
    if (name === '--version') await output.write(`${given.version}\n`);
    else if (asksHelp([name])) await output.write(overview);
    else if (command === undefined) {
      throw new UsageError('COMMAND', Object.keys(commands).join(', '), name === '' ? 'none; multihead --help lists the options' : quoted(name));
    } else if (asksHelp(end < 0 ? rest : rest.slice(0, end))) await output.write(helpFor(command));
    else {
      await command.run(rest, {
        ...given,
        output,
        messages: process.stderr,
        interrupt: new Interrupt(process),
        get input() {
          return process.stdin;
        },
      });
    }
    return exitCodes.ok;
  } catch (error) {
    const [code, message] = exitOf(error, command?.options ?? {});
    if (message !== undefined) process.stderr.write(`${message}\n`, () => {});
    return code;
  }
}
