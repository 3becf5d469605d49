/** A terminal of this machine. */
import type { ReadStream, WriteStream } from 'node:tty';
import type { ProcessStreamStart, TerminalSize } from '@releap/contract/wire';
import type { Toolbox } from '../toolbox.ts';
import { type ProcessEnd, type ProcessStreams, runProcess } from './process.ts';

/** `isTTY` is checked by the caller. */
export interface LocalTerminal {
  stdin: NodeJS.ReadableStream & Partial<Pick<ReadStream, 'setRawMode'>>;
  stdout: NodeJS.WritableStream & Partial<Pick<WriteStream, 'columns' | 'rows'>>;
}

/** One that does not know its size says 0. */
export function sizeOf({ rows, columns }: LocalTerminal['stdout']): TerminalSize {
  return { rows: rows || 24, cols: columns || 80 };
}

/** Runs a command in a terminal of the sandbox, on this one. @param term the kind of terminal, as in `TERM` */
export async function runOnTerminal(
  toolbox: Toolbox,
  start: ProcessStreamStart,
  { stdin, stdout }: LocalTerminal,
  term?: string,
): Promise<ProcessEnd> {
  stdin.setRawMode?.(true);
  try {
    return await runProcess(
      toolbox,
      { ...start, pty: sizeOf(stdout), env: { ...(term ? { TERM: term } : {}), ...start.env } },
      { stdin: stdin as ProcessStreams['stdin'], stdout, stderr: stdout },
      (onResize) => {
        const listener = (): void => onResize(sizeOf(stdout));
        stdout.on('resize', listener);
        return () => stdout.off('resize', listener);
      },
    );
  } finally {
    stdin.setRawMode?.(false);
  }
}
