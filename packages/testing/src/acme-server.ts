/** A real ACME server for tests: Pebble, of Let's Encrypt. It forgets everything when it stops. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { request } from 'node:https';
import { text } from 'node:stream/consumers';
import path from 'node:path';
import { testAuthority } from './certificates.ts';
import { eventually } from './eventually.ts';
import { freePort } from './ports.ts';

/** Of the account that `binding` asks for. */
export const ACME_BINDING = {
  keyId: 'kid-1',
  hmacKey: 'zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W',
};

export interface TestAcmeServer extends AsyncDisposable {
  directoryUrl: string;
  /** Verifies the directory. */
  caFile: string;
  /** The root of the certificates that it issues, as PEM. It is another one after each start. */
  root(): Promise<string>;
  stop(): Promise<void>;
  /** On the same port, with nothing of what it knew. */
  start(): Promise<void>;
}

export interface AcmeServerOptions {
  /** `host:port` of the DNS server that it asks. */
  dns: string;
  /** Accounts need `ACME_BINDING`. */
  binding?: boolean;
}

/** @param dir an existing folder for its configuration */
export async function startAcmeServer(dir: string, options: AcmeServerOptions): Promise<TestAcmeServer> {
  const [port, managementPort] = [await freePort(), await freePort()];
  const authority = await testAuthority('the directory');
  const { key, cert } = await authority.issue('localhost');
  const file = (name: string): string => path.join(dir, `pebble-${port}-${name}`);
  await writeFile(file('ca.pem'), authority.certificate);
  await writeFile(file('cert.pem'), cert);
  await writeFile(file('key.pem'), key);
  const { keyId, hmacKey } = ACME_BINDING;
  const pebble = {
    listenAddress: `127.0.0.1:${port}`,
    managementListenAddress: `127.0.0.1:${managementPort}`,
    certificate: file('cert.pem'),
    privateKey: file('key.pem'),
    ...(options.binding === true
      ? { externalAccountBindingRequired: true, externalAccountMACKeys: { [keyId]: hmacKey } }
      : {}),
  };
  await writeFile(file('config.json'), JSON.stringify({ pebble }));

  const get = async (url: string): Promise<string> => {
    const asked = request(url, { ca: authority.certificate });
    asked.end();
    const [answer] = (await once(asked, 'response')) as [Parameters<typeof text>[0]];
    return await text(answer);
  };
  const directoryUrl = `https://localhost:${port}/dir`;
  let stop = async (): Promise<void> => {};
  const start = async (): Promise<void> => {
    const args = [
      '--pdeathsig',
      'KILL',
      '--',
      'pebble',
      '-config',
      file('config.json'),
      '-dnsserver',
      options.dns,
    ];
    const child = spawn('setpriv', args, {
      stdio: 'ignore',
      // No pauses before it looks at a challenge, and each order has a challenge of its own.
      env: { ...process.env, PEBBLE_VA_NOSLEEP: '1', PEBBLE_AUTHZREUSE: '0' },
    });
    const ended = once(child, 'close');
    stop = async () => {
      child.kill('SIGKILL');
      await ended;
    };
    await eventually('an answer of the ACME server', async () => {
      if (child.exitCode !== null) throw new Error('pebble ended');
      return (await get(directoryUrl)).includes('newOrder');
    });
  };
  await start();
  return {
    directoryUrl,
    caFile: file('ca.pem'),
    root: () => get(`https://localhost:${managementPort}/roots/0`),
    start,
    stop: () => stop(),
    [Symbol.asyncDispose]: () => stop(),
  };
}
