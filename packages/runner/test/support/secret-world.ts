/** A network whose guest has a secret for api.example, and programs that run in the networks of its guests. */
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { eventually } from '@releap/testing/eventually';
import {
  resolveSecretZone,
  SECRET_NAME,
  SECRET_ZONE,
  type SecretEgress,
  startSecretEgress,
} from '@releap/testing/secret-egress';
import type { Namespace } from './namespaces.ts';
import { NetworkWorld } from './network-world.ts';

/** Variables that the agent sets to the bundle of the image. */
const TRUST = [
  'SSL_CERT_FILE',
  'NODE_EXTRA_CA_CERTS',
  'GIT_SSL_CAINFO',
  'CURL_CA_BUNDLE',
  'REQUESTS_CA_BUNDLE',
];
const PROGRAM_MS = 120_000;

export interface SecretWorld extends AsyncDisposable {
  world: NetworkWorld;
  egress: SecretEgress;
  /** The one with the secret. */
  guest: Namespace;
  /**
   * Runs a program in the network of a guest, where it knows the names and trusts what the agent makes it trust. Rejects, with
   * its output, when it fails.
   */
  run(
    argv: readonly string[],
    options?: { guest?: Namespace; trusted?: string },
  ): Promise<{ stdout: string; stderr: string }>;
}

/** `npm test` gives what it starts its own configuration, which an npm under test would take for the user's. */
const withoutNpm = Object.fromEntries(Object.entries(process.env).filter(([name]) => !/^npm_/i.test(name)));

/** @param token the placeholder of the guest */
export async function startSecretWorld(vmId: string, token: string): Promise<SecretWorld> {
  await using stack = new AsyncDisposableStack();
  let egress: SecretEgress | undefined;
  const world = stack.use(
    await NetworkWorld.start({
      resolve: resolveSecretZone,
      ttl: 300,
      network: async (internet, of) => {
        egress = await startSecretEgress(internet, () => [token], of);
        return egress.network;
      },
    }),
  );
  if (egress === undefined) throw new Error('the network was started without options');
  const { trusted: all } = egress;
  const hosts = join(world.home, 'hosts');
  const lines = Object.entries(SECRET_ZONE).map(([name, address]) => `${address} ${name}\n`);
  await writeFile(hosts, lines.join(''));
  const own = stack.use(await world.guest(vmId, undefined, { intercept: true }));
  world.network.replaceSecrets(vmId, ['api.example'], { [SECRET_NAME]: token });
  const { home } = world;
  const run: SecretWorld['run'] = (argv, { guest = own, trusted = all } = {}) => {
    const settings = [
      ...TRUST.map((name) => `${name}=${trusted}`),
      `HOME=${home}`,
      'GIT_TERMINAL_PROMPT=0',
      'GODEBUG=tlsmlkem=1',
      'PIP_DISABLE_PIP_VERSION_CHECK=1',
    ];
    const inNetwork = [`--net=${guest.path}`, '--', 'unshare', '--mount', '--', 'sh', '-c'];
    const command = ['mount --bind "$0" /etc/hosts && exec env "$@"', hosts, ...settings, ...argv];
    const running = promisify(execFile)('nsenter', [...inNetwork, ...command], {
      timeout: PROGRAM_MS,
      env: withoutNpm,
    });
    running.child.stdin?.end();
    return running;
  };
  // On a busy machine the interceptor starts later than netd has a connection wait for it.
  await eventually('a connection that is intercepted', async () => {
    await run(['curl', '-sS', 'https://api.example/']);
    return true;
  });
  const owned = stack.move();
  return { world, egress, guest: own, run, [Symbol.asyncDispose]: () => owned.disposeAsync() };
}
