/** A real DNS server for tests: Knot, authoritative for one zone that is changed by signed dynamic updates. */
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { NODATA, NOTFOUND, Resolver } from 'node:dns/promises';
import { mkdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { eventually } from './eventually.ts';
import { freePort } from './ports.ts';

export interface TestDnsServer extends AsyncDisposable {
  /** On 127.0.0.1. */
  port: number;
  /** The key for updates, as `tsig-keygen` writes it. */
  keyFile: string;
  /** All TXT records of a name. */
  txt(name: string): Promise<string[]>;
}

/** @param dir an existing folder; the server stores its data below it */
export async function startDnsServer(dir: string, zone: string): Promise<TestDnsServer> {
  const port = await freePort();
  const folder = path.join(dir, 'knot');
  await mkdir(folder);
  const secret = randomBytes(32).toString('base64');
  const keyFile = path.join(folder, 'update.key');
  await writeFile(keyFile, `key "update" { algorithm hmac-sha256; secret "${secret}"; };\n`, { mode: 0o600 });
  const records = ['@ 60 SOA ns hostmaster 1 60 60 60 60', '@ 60 NS ns', 'ns 60 A 127.0.0.1'];
  await writeFile(path.join(folder, 'zone'), `$ORIGIN ${zone}.\n${records.join('\n')}\n`);
  const config = `server:
  listen: 127.0.0.1@${port}
  rundir: ${folder}
  udp-workers: 1
  tcp-workers: 1
  background-workers: 1
database:
  storage: ${folder}
log:
  - target: stderr
    any: error
key:
  - id: update
    algorithm: hmac-sha256
    secret: ${secret}
acl:
  - id: update
    key: update
    action: update
zone:
  - domain: ${zone}
    storage: ${folder}
    file: zone
    zonefile-sync: -1
    journal-content: none
    acl: update
`;
  await writeFile(path.join(folder, 'knot.conf'), config, { mode: 0o600 });
  const child = spawn(
    'setpriv',
    ['--pdeathsig', 'KILL', '--', 'knotd', '-c', path.join(folder, 'knot.conf')],
    {
      stdio: ['ignore', 'ignore', 'pipe'],
    },
  );
  let output = '';
  child.stderr.on('data', (data: Buffer) => (output = (output + data.toString()).slice(-4096)));
  const ended = once(child, 'close');
  const resolver = new Resolver({ timeout: 2_000, tries: 1 });
  resolver.setServers([`127.0.0.1:${port}`]);
  await eventually('an answer of the DNS server', async () => {
    if (child.exitCode !== null) throw new Error(`knotd ended: ${output}`);
    return (await resolver.resolveNs(zone)).length > 0;
  });
  return {
    port,
    keyFile,
    txt: async (name) => {
      // A query that was not answered in time says nothing about the records.
      const records = await eventually(`the records of ${name}`, () =>
        resolver.resolveTxt(name).catch((error: NodeJS.ErrnoException) => {
          if (error.code === NODATA || error.code === NOTFOUND) return [];
          throw error;
        }),
      );
      return records.map((parts) => parts.join(''));
    },
    async [Symbol.asyncDispose]() {
      child.kill('SIGKILL');
      await ended;
    },
  };
}
