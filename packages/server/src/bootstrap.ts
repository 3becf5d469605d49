import { randomUUID } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { hostname } from 'node:os';
import path from 'node:path';
import { ensureBootstrap } from '@releap/control';
import { openDatabase } from '@releap/database';
import type { Logger } from 'pino';
import { makePrivateFile, writePrivateFile } from '@releap/certificates/private-file';

/** What a user or a tool on this machine needs to use the service. Written to `$RELEAP_HOME/bootstrap.json`. */
export interface BootstrapFile {
  base_url: string;
  /** Base URL of the internal listener, for the operator's commands. */
  internal_url: string;
  /** Where the compatibility facade answers. */
  compat_url: string;
  api_key: string;
  project_id: string;
  org_id: string;
  /** OpenID Connect issuer at which users sign in. */
  issuer?: string;
  /** A built-in image with a shell. */
  image: string;
}

/**
 * Updates `bootstrap.json`. Its key stays as long as it is valid. If a crash prevented the write after a key was created,
 * the next start replaces the key.
 */
export async function writeBootstrap(options: {
  home: string;
  databaseUrl: string;
  baseUrl: string;
  internalUrl: string;
  issuer: string | undefined;
  image: string;
  log: Logger;
}): Promise<void> {
  const file = path.join(options.home, 'bootstrap.json');
  const before = await readFile(file, 'utf8').catch(() => undefined);
  const database = openDatabase({ url: options.databaseUrl, log: options.log, connections: 1 });
  try {
    const { apiKey, projectId, orgId } = await ensureBootstrap(database, {
      existingApiKey: keyIn(before),
      // Servers with other homes on the same database have their own keys, also where both are containers whose host name
      // and path are the same.
      keyName: `bootstrap ${hostname()}:${options.home} ${await installationId(options.home)}`,
    });
    const content: BootstrapFile = {
      base_url: options.baseUrl,
      internal_url: options.internalUrl,
      compat_url: `${options.baseUrl}/compat`,
      api_key: apiKey,
      project_id: projectId,
      org_id: orgId,
      ...(options.issuer === undefined ? {} : { issuer: options.issuer }),
      image: options.image,
    };
    const text = `${JSON.stringify(content, null, 2)}\n`;
    if (text !== before) await writePrivateFile(file, text);
  } finally {
    await database.close();
  }
}

/** Names this home, wherever it is mounted. */
async function installationId(home: string): Promise<string> {
  const file = path.join(home, 'installation');
  await makePrivateFile(file, `${randomUUID()}\n`);
  return (await readFile(file, 'utf8')).trim();
}

function keyIn(text: string | undefined): string | undefined {
  if (text === undefined) return undefined;
  try {
    const { api_key: key } = JSON.parse(text) as Partial<BootstrapFile>;
    return typeof key === 'string' ? key : undefined;
  } catch {
    return undefined;
  }
}
