import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { PATIENCE } from '@releap/testing/eventually';
import { REPO, type Service } from '@releap/testing/service';

const RLP = join(REPO, 'packages/cli/bin/rlp');
const PATIENCE_MS = 300_000 * PATIENCE;

export interface Outcome {
  code: number | null;
  stdout: string;
  stderr: string;
}

export interface Terminal {
  start: (args: string[]) => { child: ChildProcess; outcome: Outcome; ended: Promise<Outcome> };
  rlp: (args: string[], input?: string) => Promise<Outcome>;
  /** What a command prints that has to succeed. */
  output: (args: string[], input?: string) => Promise<string>;
}

/**
 * `rlp` as a person on this machine calls it: it finds the service by itself.
 * @param where asked for each command; what the person has signed in to lies in `folder`
 */
export function terminal(where: () => { service: Service; folder: string }): Terminal {
  const start: Terminal['start'] = (args) => {
    const { service, folder } = where();
    const { RELEAP_URL: _url, RELEAP_API_KEY: _key, ...env } = process.env;
    const child = spawn(RLP, args, {
      cwd: folder,
      env: { ...env, RELEAP_HOME: service.home, XDG_CONFIG_HOME: folder },
      stdio: ['pipe', 'pipe', 'pipe'],
      timeout: PATIENCE_MS,
    });
    const outcome: Outcome = { code: null, stdout: '', stderr: '' };
    child.stdout.on('data', (chunk: Buffer) => (outcome.stdout += chunk.toString('utf8')));
    child.stderr.on('data', (chunk: Buffer) => (outcome.stderr += chunk.toString('utf8')));
    child.stdin.on('error', () => undefined);
    const ended = new Promise<Outcome>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code) => resolve(Object.assign(outcome, { code })));
    });
    return { child, outcome, ended };
  };
  const rlp: Terminal['rlp'] = async (args, input = '') => {
    const { child, ended } = start(args);
    child.stdin?.end(input);
    return await ended;
  };
  const output: Terminal['output'] = async (args, input) => {
    const { code, stdout, stderr } = await rlp(args, input);
    assert.equal(code, 0, `rlp ${args.join(' ')}: ${stderr}`);
    return stdout;
  };
  return { start, rlp, output };
}
