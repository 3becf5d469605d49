import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import type { MeasuredService } from '../service.ts';

export const PORT = 8080;
const BUILD_DEADLINE_MS = 300_000;

/** Builds the server and starts it in a sandbox. @param folder for the program */
export async function startGuestServer(service: MeasuredService, id: string, folder: string): Promise<void> {
  const program = join(folder, 'server');
  await promisify(execFile)(
    'go',
    ['build', '-ldflags', '-s -w', '-o', program, join(import.meta.dirname, 'server.go')],
    {
      timeout: BUILD_DEADLINE_MS,
      env: { ...process.env, CGO_ENABLED: '0', GOTOOLCHAIN: 'local', GOFLAGS: '' },
    },
  );
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
