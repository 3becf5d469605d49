/** A home folder as a server leaves it. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestService } from './service.ts';
import { KEY } from './service.ts';
import { OPERATOR_TOKEN } from './service-hosts.ts';

export interface Home extends AsyncDisposable {
  path: string;
}

/** Of that service, unless the files are given; `undefined` leaves one out. */
export async function home(
  service: TestService | null,
  files: Record<string, string | undefined> = {},
): Promise<Home> {
  const path = await mkdtemp(join(tmpdir(), 'rlp-home-'));
  const all: Record<string, string | undefined> = {
    ...(service && {
      'bootstrap.json': JSON.stringify({ base_url: service.url, internal_url: service.url, api_key: KEY }),
      'operator.token': `${OPERATOR_TOKEN}\n`,
    }),
    ...files,
  };
  for (const [name, text] of Object.entries(all))
    if (text !== undefined) await writeFile(join(path, name), text, { mode: 0o600 });
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}
