import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { freePort } from '@releap/testing/ports';
import { until } from '../processes.ts';
import type { MeasuredService } from '../service.ts';

export const PORT = 8080;
const BUILD_DEADLINE_MS = 300_000;

/** Builds the server. @returns its path */
export async function buildServer(folder: string): Promise<string> {
  const program = join(folder, 'server');
  await promisify(execFile)(
    'go',
    ['build', '-ldflags', '-s -w', '-o', program, join(import.meta.dirname, 'server.go')],
    {
      timeout: BUILD_DEADLINE_MS,
      env: { ...process.env, CGO_ENABLED: '0', GOTOOLCHAIN: 'local', GOFLAGS: '' },
    },
  );
  return program;
}

/** Starts it on this machine, on loopback. */
export async function startNativeServer(program: string): Promise<AsyncDisposable & { port: number }> {
  const port = await freePort();
  const child = spawn(program, [`127.0.0.1:${port}`], { stdio: 'ignore' });
  await until(
    'the native server answers',
    async () => (await fetch(`http://127.0.0.1:${port}/`).catch(() => undefined))?.ok === true,
  );
  return {
    port,
    async [Symbol.asyncDispose]() {
      const exited = once(child, 'exit');
      child.kill('SIGKILL');
      await exited;
    },
  };
}

/** Starts it in a sandbox. */
export async function startGuestServer(service: MeasuredService, id: string, program: string): Promise<void> {
  const sent = await fetch(`${await service.service.toolboxUrl()}/${id}/files/upload?path=/tmp/server`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${service.service.bootstrap.api_key}`,
      'content-type': 'application/octet-stream',
    },
    body: await readFile(program),
  });
  if (!sent.ok) throw new Error(`the upload of the server answered ${sent.status}: ${await sent.text()}`);
  const { exitCode, result } = await service.service.exec(
    id,
    `chmod +x /tmp/server && (/tmp/server > /dev/null 2>&1 &)
     for i in 1 2 3 4 5 6 7 8 9 10; do wget -q -O - http://127.0.0.1:${PORT}/ && exit 0; sleep 1; done; exit 1`,
  );
  if (exitCode !== 0) throw new Error(`the server does not start in a sandbox: ${result}`);
}
