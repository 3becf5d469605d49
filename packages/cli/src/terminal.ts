/** What a command may touch of the process it runs in; tests and the entry point hand it in. */
import type { ReadStream, WriteStream } from 'node:tty';
import { EXIT } from './exit-codes.ts';

export interface Terminal {
  stdin: NodeJS.ReadableStream & Partial<Pick<ReadStream, 'isTTY' | 'setRawMode'>>;
  stdout: NodeJS.WritableStream & Partial<Pick<WriteStream, 'isTTY' | 'columns' | 'rows'>>;
  stderr: NodeJS.WritableStream & Partial<Pick<WriteStream, 'isTTY' | 'columns'>>;
  env: Readonly<Record<string, string | undefined>>;
}

export interface GlobalOptions {
  url?: string;
  apiKey?: string;
  json: boolean;
}

/** What every command gets. `signal` is aborted by the first Ctrl-C or SIGTERM. */
export interface Context {
  terminal: Terminal;
  options: GlobalOptions;
  signal: AbortSignal;
}

export function print(context: Context, text: string): void {
  context.terminal.stdout.write(`${text}\n`);
}

export function printJson(context: Context, value: unknown): void {
  context.terminal.stdout.write(`${JSON.stringify(value, null, 2)}\n`);
}

/** The result of a command: as JSON with `--json`, else as text. @returns the exit code */
export function show(context: Context, value: unknown, text: () => string): number {
  if (context.options.json) printJson(context, value);
  else print(context, text());
  return EXIT.ok;
}

/** Resolves when more can be written. */
export async function writeTo(stream: Terminal['stdout'], chunk: Uint8Array): Promise<void> {
  if (!stream.write(chunk)) await new Promise<void>((resolve) => stream.once('drain', () => resolve()));
}

/** A remark beside the result: only for people who look at it. */
export function remark(context: Context, text: string): void {
  if (context.terminal.stderr.isTTY && !context.options.json) context.terminal.stderr.write(`${text}\n`);
}

type Color = 'red' | 'green' | 'yellow' | 'dim' | 'bold';
const CODES: Record<Color, [number, number]> = {
  red: [31, 39],
  green: [32, 39],
  yellow: [33, 39],
  dim: [2, 22],
  bold: [1, 22],
};

/** Paints only on a terminal that can show it, and never with NO_COLOR (no-color.org). */
export function paint(
  terminal: Pick<Terminal, 'env'>,
  stream: { isTTY?: boolean | undefined },
  color: Color,
  text: string,
): string {
  const plain = !stream.isTTY || (terminal.env['NO_COLOR'] ?? '') !== '' || terminal.env['TERM'] === 'dumb';
  const [on, off] = CODES[color];
  return plain ? text : `\u001b[${on}m${text}\u001b[${off}m`;
}

/**
 * Text that a sandbox or a stranger chose, made safe for a terminal: control characters, which could move the
 * cursor or change the title, become `?`.
 */
export function printable(text: string): string {
  // oxlint-disable-next-line no-control-regex -- it searches for control characters
  return text.replaceAll(/[\u0000-\u001f\u007f-\u009f\u2028\u2029\u202a-\u202e\u2066-\u2069]/g, '?');
}
