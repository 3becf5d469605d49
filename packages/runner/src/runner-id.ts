import { randomUUID } from 'node:crypto';
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';

const UUID = /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** The id by which the control plane knows this machine again; made once, kept in `path`. */
export async function runnerId(path: string): Promise<string> {
  await mkdir(dirname(path), { recursive: true, mode: 0o700 });
  const found = await stat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'ENOENT') throw error;
  });
  // Empty after a power failure that came right after it was made: nothing can be known by it yet.
  if (found === undefined || found.size === 0)
    await writeFile(path, `${randomUUID()}\n`, { mode: 0o600, flush: true });
  const id = (await readFile(path, 'utf8')).trim();
  if (!UUID.test(id)) throw new Error(`${path} does not hold a runner id; remove it to make a new one`);
  return id;
}
