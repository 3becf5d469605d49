/** Values that must not be on a command line, where other users and the shell's history see them. */
import { StringDecoder } from 'node:string_decoder';
import { interruptedError, usageError } from '../cli-error.ts';
import type { Context, Terminal } from '../terminal.ts';
import { collect } from './collect.ts';

/** What a service takes. */
const MAX_BYTES = 64 * 1024;

/**
 * From a pipe or file: all of stdin, without the line break at its end. From a terminal: one line that is not shown.
 * @param what names it in the prompt and in errors
 */
export async function readSecret(context: Context, what: string): Promise<string> {
  const { stdin } = context.terminal;
  const value = stdin.isTTY ? await hiddenLine(context, `${what}: `) : await all(context, what);
  if (value === '') throw usageError(`${what} is empty: give it on stdin, or type it in`);
  return value;
}

async function all(context: Context, what: string): Promise<string> {
  // One line break more than the service takes.
  const bytes = await collect(context, context.terminal.stdin as AsyncIterable<Buffer>, MAX_BYTES + 2);
  if (bytes === undefined) throw usageError(`${what} has more than ${MAX_BYTES} bytes`);
  try {
    const text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    return text.replace(/\r?\n$/, '');
  } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw usageError(`${what} is not UTF-8 text: encode it, with base64 for example`);
  }
}

async function hiddenLine({ terminal, signal }: Context, prompt: string): Promise<string> {
  const { stdin, stderr } = terminal;
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const typed: string[] = [];
  const decoder = new StringDecoder('utf8');
  const onData = (chunk: Buffer | string): void => {
    for (const character of typeof chunk === 'string' ? chunk : decoder.write(chunk)) {
      if (character === '\r' || character === '\n' || character === '\u0004') return resolve(typed.join(''));
      if (character === '\u0003') return reject(interruptedError());
      if (character === '\u007f' || character === '\b') typed.pop();
      else if (character === '\u0015') typed.length = 0;
      else if (typed.length < MAX_BYTES) typed.push(character);
    }
  };
  const onEnd = (): void => resolve(typed.join(''));
  const onAbort = (): void => reject(interruptedError());
  raw(stdin, true);
  stderr.write(prompt);
  stdin.on('data', onData).on('end', onEnd).on('error', reject);
  signal.addEventListener('abort', onAbort, { once: true });
  try {
    return await promise;
  } finally {
    signal.removeEventListener('abort', onAbort);
    stdin.off('data', onData).off('end', onEnd).off('error', reject);
    stdin.pause();
    raw(stdin, false);
    stderr.write('\n');
  }
}

/** In raw mode the terminal does not echo, and sends Ctrl-C as a character. */
function raw(stdin: Terminal['stdin'], on: boolean): void {
  stdin.setRawMode?.(on);
}
