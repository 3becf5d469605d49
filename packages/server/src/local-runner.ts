import path from 'node:path';
import { type LocalRunner, runnerOfHome } from '@releap/certificates/hosts';
import type { Config } from './config/config.ts';

/** The runner of this home: whatever address it has for other machines, processes here use its Unix socket. */
export function localRunner({ home }: Pick<Config, 'home'>): LocalRunner {
  return runnerOfHome({
    idFile: path.join(home, 'runner/id'),
    socketPath: path.join(home, 'run/runner.sock'),
  });
}
