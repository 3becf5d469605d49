import { execFileSync } from 'node:child_process';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Item, tarOf } from '@releap/testing/oci';
import { REPO } from '@releap/testing/service';

const START = `
echo "arguments: [$1] [$2]"
echo "user: $(id)"
echo "folder: $(pwd)"
echo "colour: $COLOUR, shade: $SHADE, path: $PATH"
echo "home: $HOME"
echo "error stream" >&2
echo ready
while :; do
  if [ -s inbox ]; then echo "got $(cat inbox)"; rm inbox; fi
  sleep 0.1
done
`;

/**
 * The layers of an image as a user would build it: busybox with a user below, and an application with its
 * entrypoint `/app/start.sh` on top, which tells how it was started and answers what is put into `inbox`.
 */
export async function appImage(more: readonly Item[] = []): Promise<Buffer[]> {
  const program = await busyboxProgram();
  const names = [
    'sh',
    'cat',
    'echo',
    'env',
    'false',
    'id',
    'ls',
    'mkdir',
    'rm',
    'sleep',
    'stat',
    'touch',
    'true',
  ];
  const base: Item[] = [
    ...['bin', 'etc', 'home', 'tmp'].map((name): Item => ({ name, type: 'directory', mode: 0o755 })),
    { name: 'bin/busybox', content: program, mode: 0o755 },
    ...names.map((name): Item => ({ name: `bin/${name}`, type: 'symlink', linkname: 'busybox' })),
    { name: 'etc/passwd', content: 'root:x:0:0::/root:/bin/sh\nworker:x:4711:4712::/home/worker:/bin/sh\n' },
    { name: 'etc/group', content: 'root:x:0:\ncrew:x:4712:\n' },
    { name: 'home/worker', type: 'directory', mode: 0o700, uid: 4711, gid: 4712 },
    { name: 'app', type: 'directory', mode: 0o755 },
    { name: 'app/start.sh', content: 'echo the lower layer has won\n' },
  ];
  const app: Item[] = [
    { name: 'app', type: 'directory', mode: 0o755 },
    { name: 'app/start.sh', content: START, mode: 0o644 },
    { name: 'app/data', type: 'directory', mode: 0o755, uid: 4711, gid: 4712 },
    ...more,
  ];
  return await Promise.all([tarOf(base), tarOf(app)]);
}

/** Debian's static busybox, out of the package that set-up has fetched. */
async function busyboxProgram(): Promise<Buffer> {
  const packages = join(REPO, 'build/packages');
  const deb = (await readdir(packages)).find((name) => /^busybox-static_.*_amd64\.deb$/.test(name));
  if (deb === undefined) throw new Error(`no busybox-static package in ${packages}: run the set-up`);
  const folder = await mkdtemp(join(tmpdir(), 'releap-busybox-'));
  try {
    execFileSync('dpkg-deb', ['--extract', join(packages, deb), folder]);
    const found = await readdir(folder, { recursive: true });
    const path = found.find((name) => /(^|\/)bin\/busybox$/.test(name));
    if (path === undefined) throw new Error(`${deb} has no bin/busybox`);
    return await readFile(join(folder, path));
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
