/** A home folder as a server leaves it. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { OPERATOR_TOKEN } from '@releap/testing/credentials';

export interface Home extends AsyncDisposable {
  path: string;
}

/** Where a server listens, and a key of it. */
export interface Server {
  url: string;
  internalUrl: string;
  key: string;
}

/** Of that server, unless the files are given; `undefined` leaves one out. */
export async function home(
  server: Server | null,
  files: Record<string, string | undefined> = {},
): Promise<Home> {
  const path = await mkdtemp(join(tmpdir(), 'rlp-home-'));
  const all: Record<string, string | undefined> = {
    ...(server && {
      'bootstrap.json': JSON.stringify({
        base_url: server.url,
        internal_url: server.internalUrl,
        api_key: server.key,
      }),
      'operator.token': `${OPERATOR_TOKEN}\n`,
    }),
    ...files,
  };
  for (const [name, text] of Object.entries(all))
    if (text !== undefined) await writeFile(join(path, name), text, { mode: 0o600 });
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
}
