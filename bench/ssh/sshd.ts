/** Debian's sshd of this machine, put into a sandbox with its libraries: what the SSH gateway is compared with. */
import { execFile } from 'node:child_process';
import { access, copyFile, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import type { MeasuredService } from '../service.ts';

const run = promisify(execFile);

const SSHD = '/usr/sbin/sshd';
/** Its helpers: the sftp server and, in newer versions, the program of a session. */
const HELPERS = '/usr/lib/openssh';
const HELPER = /^(?:sftp-server|sshd-session|sshd-auth)$/;
const CONFIG = `Port 22
HostKey /etc/ssh/host
AuthorizedKeysFile /etc/ssh/authorized
PermitRootLogin yes
StrictModes no
UsePAM no
Subsystem sftp ${HELPERS}/sftp-server
`;

/**
 * Starts it in a sandbox with a busybox image.
 * @param folder an empty one
 * @returns the client's private key
 */
export async function startSshd(service: MeasuredService, id: string, folder: string): Promise<string> {
  const root = join(folder, 'root');
  const clientKey = join(folder, 'client');
  await mkdir(join(root, 'etc/ssh'), { recursive: true });
  await run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', clientKey]);
  await run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-f', join(root, 'etc/ssh/host')]);
  await copyFile(`${clientKey}.pub`, join(root, 'etc/ssh/authorized'));
  await writeFile(join(root, 'etc/ssh/sshd_config'), CONFIG);
  const helpers = (await readdir(HELPERS)).filter((name) => HELPER.test(name));
  for (const file of await withLibraries([SSHD, ...helpers.map((name) => join(HELPERS, name))])) {
    await mkdir(join(root, dirname(file)), { recursive: true });
    await copyFile(file, join(root, file));
  }
  const archive = join(folder, 'sshd.tar');
  await run('tar', ['-C', root, '-cf', archive, '.']);
  const { api_key: key } = service.service.bootstrap;
  const sent = await fetch(`${await service.service.toolboxUrl()}/${id}/files/upload?path=/tmp/sshd.tar`, {
    method: 'POST',
    headers: { authorization: `Bearer ${key}`, 'content-type': 'application/octet-stream' },
    body: await readFile(archive),
  });
  if (!sent.ok) throw new Error(`the upload of sshd answered ${sent.status}: ${await sent.text()}`);
  const start =
    'tar -C / -xf /tmp/sshd.tar && chmod 600 /etc/ssh/host && mkdir -p /run/sshd /var/empty && ' +
    "{ grep -q '^sshd:' /etc/passwd || echo 'sshd:x:100:65534::/run/sshd:/bin/false' >> /etc/passwd; } && " +
    `${SSHD} > /tmp/sshd.log 2>&1 || { cat /tmp/sshd.log; false; }`;
  const { exitCode, result } = await service.service.exec(id, start);
  if (exitCode !== 0) throw new Error(`sshd does not start in a sandbox: ${result}`);
  return clientKey;
}

/** These programs, and what the dynamic linker loads for them. */
async function withLibraries(programs: string[]): Promise<Set<string>> {
  const files = new Set(programs);
  for (const program of programs) {
    await access(program);
    const { stdout } = await run('ldd', [program]);
    for (const [, library] of stdout.matchAll(/(?:=> |^\s*)(\/\S+) \(0x/gm))
      if (library !== undefined) files.add(library);
  }
  return files;
}
