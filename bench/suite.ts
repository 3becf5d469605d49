import { rm } from 'node:fs/promises';
import { temporaryFolder } from '@releap/testing/temporary-folder';
import type { SuiteResult } from './report.ts';

export interface SuiteOptions {
  /** Samples of each contender that count; warm-up rounds come on top. */
  samples: number;
  /** Tells how far it is. */
  progress: (text: string) => void;
  /** Aborted when the user stops the run: the suite removes what it created and rejects. */
  signal: AbortSignal;
}

/** One or more tables, in a stable order; all at the end, or each when it is done. */
export type Suite = (options: SuiteOptions) => Promise<SuiteResult[]> | AsyncGenerator<SuiteResult>;

/** A folder that is removed with its user. Its path is short, as the paths of unix sockets below it are limited. */
export async function suiteFolder(): Promise<{ path: string } & AsyncDisposable> {
  const path = await temporaryFolder('rlb-');
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}
