/** What tests of secrets at egress share: authorities, a server outside, and what the control plane would answer. */
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import type { RunnerSecrets } from '@releap/contract';
import { testAuthority, type TestAuthority } from './certificates.ts';
import { temporaryFolder } from './temporary-folder.ts';

/** Where the secret may be sent, and another host of the same server. */
export const SECRET_ZONE: Readonly<Record<string, string>> = {
  'api.example': '203.0.113.2',
  'other.example': '203.0.113.3',
};
export const SECRET_NAME = 'KEY';
export const SECRET_VALUE = 'a-value-that-no-guest-sees-4d7a';

export const resolveSecretZone = (name: string): string[] | undefined =>
  SECRET_ZONE[name] === undefined ? undefined : [SECRET_ZONE[name]];

/** A placeholder in the form of a real one. */
export const secretPlaceholder = (seed: string): string => `rlps_${seed.repeat(43).slice(0, 43)}`;

/** The network namespace of 'the internet'. */
export interface Outside {
  path: string;
  keep(child: ChildProcess): void;
}

export interface SecretEgress {
  /** Signs what guests see of intercepted hosts. */
  guests: TestAuthority;
  /** Paths of PEM files: both authorities together, and that of the server alone. */
  trusted: string;
  serverAuthority: string;
  /** For `NetworkOptions`: netd's user must be able to reach the folder. */
  network: {
    runDir: string;
    secrets: {
      extraCa: string;
      source: {
        certificate: (request: string) => Promise<string>;
        changed: (known: readonly { id: string; revision?: string }[]) => Promise<RunnerSecrets>;
      };
    };
  };
}

/**
 * @param placeholders those that a sandbox may use
 * @param stack ends the server and removes the files
 * @param allowHttp whether the secret's value may be sent over plain HTTP
 */
export async function startSecretEgress(
  outside: Outside,
  placeholders: (vmId: string) => readonly string[],
  stack: AsyncDisposableStack,
  allowHttp = false,
): Promise<SecretEgress> {
  const runDir = `/run/releap-test-${process.pid}`;
  stack.defer(() => rm(runDir, { recursive: true, force: true }));
  const files = await temporaryFolder('releap-egress-');
  stack.defer(() => rm(files, { recursive: true, force: true }));
  const [guests, servers] = [await testAuthority('guests'), await testAuthority('servers')];
  const at = (name: string): string => join(files, `${name}.pem`);
  const texts = {
    ...(await servers.issue(...Object.keys(SECRET_ZONE))),
    servers: servers.certificate,
    trusted: `${guests.certificate}${servers.certificate}`,
  };
  for (const [name, text] of Object.entries(texts)) await writeFile(at(name), text);
  await makePackages(files);
  const program = fileURLToPath(new URL('egress-server.ts', import.meta.url));
  const server = spawn(
    'nsenter',
    [`--net=${outside.path}`, '--', process.execPath, program, at('key'), at('cert'), files],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  outside.keep(server);
  await once(server.stdout, 'data');
  const secretsOf = (vmId: string): RunnerSecrets['sandboxes'][number]['secrets'] =>
    placeholders(vmId).map((one) => ({
      name: SECRET_NAME,
      value: SECRET_VALUE,
      allowed_domains: ['api.example'],
      allow_http: allowHttp,
      placeholders: [createHash('sha256').update(one).digest('hex')],
    }));
  return {
    guests,
    trusted: at('trusted'),
    serverAuthority: at('servers'),
    network: {
      runDir,
      secrets: {
        extraCa: servers.certificate,
        source: {
          certificate: (request) => guests.signIntermediate(request),
          changed: (known) =>
            Promise.resolve({
              sandboxes: known
                .filter(({ revision }) => revision === undefined)
                .map(({ id }) => ({ id, revision: '1', secrets: secretsOf(id) })),
              more: false,
            }),
        },
      },
    },
  };
}

/** A wheel, and an npm package, of one file each. */
async function makePackages(folder: string): Promise<void> {
  const run = promisify(execFile);
  await mkdir(join(folder, 'package'));
  await writeFile(join(folder, 'package/package.json'), '{"name":"hello","version":"1.0.0"}');
  await run('tar', ['-czf', join(folder, 'hello-1.0.0.tgz'), '-C', folder, 'package']);
  const wheel = `
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as z:
    z.writestr("hello.py", "WORD = 'hello'\\n")
    z.writestr("hello-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: hello\\nVersion: 1.0\\n")
    z.writestr("hello-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    z.writestr("hello-1.0.dist-info/RECORD", "hello.py,,\\nhello-1.0.dist-info/METADATA,,\\nhello-1.0.dist-info/WHEEL,,\\nhello-1.0.dist-info/RECORD,,\\n")
`;
  await run('python3', ['-c', wheel, join(folder, 'hello-1.0-py3-none-any.whl')]);
}
