import type { Command } from 'commander';
import type { Context } from '../terminal.ts';

/** What a group of commands needs to be put into the program. */
export interface Registration {
  program: Command;
  /** To be called inside an action: only then are the options known. */
  context: () => Context;
  /** The words after the first `--` of the command line; none without one. */
  afterDashes: readonly string[];
  /** Hands the exit code of a command on. */
  finish: (running: Promise<number>) => Promise<void>;
  /** An action that passes on what commander gives. What it does is loaded only then: it would slow all others. */
  lazy: <A extends unknown[]>(
    load: () => Promise<(context: Context, ...args: A) => Promise<number>>,
  ) => (...args: A) => Promise<void>;
}

/** An option that may be given several times. */
export const collect = (value: string, before: string[] | undefined): string[] => [...(before ?? []), value];
