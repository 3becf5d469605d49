/**
 * `busybox`: the one static program of Debian's package `busybox-static` under all its names, and the few files a system
 * expects. The package is only read, never installed.
 */
import { closeSync, openSync, readSync, statSync } from 'node:fs';
import { chmod, open, readFile, readdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { ARCHITECTURE } from '../../host/architecture.ts';
import { ImageError, show } from '../image-error.ts';
import { runTool, toolEnv } from '../image-tool.ts';
import { readTar } from '../tar-read.ts';
import { EMPTY_RUN_CONFIG } from './builtin-image.ts';
import type { BuiltinContext, BuiltinImage, MadeImage } from './builtin-image.ts';
import { composeLayer } from './compose-layer.ts';
import type { LayerItem } from './compose-layer.ts';

const PACKAGE = 'busybox-static';
/** Raise it when the files below change. */
const RECIPE = 1;
const TOOL_MS = 60_000;
const PROGRAM_MAX_BYTES = 16 * 1024 * 1024;

export const busybox: BuiltinImage = {
  name: 'busybox',
  recipe: async (packagesDir) =>
    `busybox-${RECIPE}:${path.basename((await findPackage(packagesDir)) ?? PACKAGE)}`,
  make,
};

async function make(context: BuiltinContext): Promise<MadeImage> {
  context.report('reading the package', 0, 2);
  const deb = (await findPackage(context.packagesDir)) ?? (await fetchPackage(context));
  const program = await readProgram(deb, context);
  const names = await listNames(program, context);
  context.report('writing the files', 1, 2);
  const layer = await composeLayer(path.join(context.workDir, 'busybox.tar'), [
    ...SYSTEM,
    { path: 'bin/busybox', content: await readFile(program), mode: 0o755 },
    ...names.map((name): LayerItem => ({ path: name, symlink: '/bin/busybox' })),
  ]);
  context.report('done', 2, 2);
  return {
    layers: [layer],
    run: {
      ...EMPTY_RUN_CONFIG,
      cmd: ['/bin/sh'],
      env: { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' },
    },
  };
}

const folders = (...names: string[]): LayerItem[] => names.map((name) => ({ path: name, directory: true }));

const SYSTEM: readonly LayerItem[] = [
  ...folders('bin', 'dev', 'etc', 'home', 'lib', 'mnt', 'opt', 'proc', 'run', 'sbin', 'srv', 'sys'),
  ...folders(
    'usr',
    'usr/bin',
    'usr/sbin',
    'usr/lib',
    'usr/share',
    'usr/local',
    'usr/local/bin',
    'usr/local/sbin',
  ),
  ...folders('var', 'var/lib', 'var/log', 'var/cache', 'var/spool'),
  { path: 'var/run', symlink: '/run' },
  { path: 'root', directory: true, mode: 0o700 },
  { path: 'tmp', directory: true, mode: 0o1777 },
  { path: 'var/tmp', directory: true, mode: 0o1777 },
  {
    path: 'etc/passwd',
    content:
      'root:x:0:0:root:/root:/bin/sh\n' +
      'daemon:x:1:1:daemon:/usr/sbin:/bin/false\n' +
      'nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n',
  },
  {
    path: 'etc/group',
    content: 'root:x:0:\ndaemon:x:1:\ntty:x:5:\ndisk:x:6:\nusers:x:100:\nnogroup:x:65534:\n',
  },
  { path: 'etc/shadow', content: 'root:*:19700:0:99999:7:::\nnobody:*:19700:0:99999:7:::\n', mode: 0o600 },
  { path: 'etc/shells', content: '/bin/sh\n/bin/ash\n' },
  { path: 'etc/hosts', content: '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' },
  { path: 'etc/hostname', content: 'sandbox\n' },
  { path: 'etc/resolv.conf', content: '' },
  { path: 'etc/nsswitch.conf', content: 'passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n' },
  { path: 'etc/os-release', content: 'NAME="busybox"\nID=busybox\nPRETTY_NAME="busybox (Debian 12)"\n' },
  {
    path: 'etc/profile',
    content: 'export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n',
  },
];

/** The newest package that set-up left, if any. */
async function findPackage(packagesDir: string | undefined): Promise<string | undefined> {
  if (packagesDir === undefined) return undefined;
  const names = await readdir(packagesDir).catch(() => []);
  const found = names
    .filter((name) => name.startsWith(`${PACKAGE}_`) && name.endsWith(`_${ARCHITECTURE.name}.deb`))
    .sort();
  const last = found.at(-1);
  return last === undefined ? undefined : path.join(packagesDir, last);
}

async function fetchPackage(context: BuiltinContext): Promise<string> {
  const result = await runTool('apt-get', ['-q', '-o', 'APT::Sandbox::User=root', 'download', PACKAGE], {
    deadlineMs: TOOL_MS,
    signal: context.signal,
    cwd: context.workDir,
    env: toolEnv(context.workDir),
  });
  const deb = await findPackage(context.workDir);
  if (result.code !== 0 || deb === undefined) {
    throw new ImageError(
      'unreachable',
      `the built-in image busybox needs Debian's package ${PACKAGE}, and apt-get could not download it: ${show(result.stderr.trim(), 500)}`,
    );
  }
  return deb;
}

/** Copies `bin/busybox` out of the package. */
async function readProgram(deb: string, context: BuiltinContext): Promise<string> {
  const archive = path.join(context.workDir, 'package.tar');
  {
    await using out = await open(archive, 'wx', 0o600);
    const result = await runTool('dpkg-deb', ['--fsys-tarfile', deb], {
      deadlineMs: TOOL_MS,
      signal: context.signal,
      stdoutFd: out.fd,
    });
    if (result.code !== 0) {
      throw new ImageError(
        'failed',
        `cannot read the package ${path.basename(deb)}: ${show(result.stderr.trim(), 500)}`,
      );
    }
  }
  const target = path.join(context.workDir, 'busybox');
  const fd = openSync(archive, 'r');
  try {
    for (const entry of readTar(fd, statSync(archive).size)) {
      if (!/^(?:\.\/)?(?:usr\/)?bin\/busybox$/.test(entry.path) || entry.type !== 'file') continue;
      const [extent] = entry.extents;
      if (!extent || entry.size > PROGRAM_MAX_BYTES) break;
      const content = Buffer.alloc(entry.size);
      readSync(fd, content, 0, content.length, extent.offset);
      await writeFile(target, content, { mode: 0o700, flag: 'wx' });
      await chmod(target, 0o700);
      return target;
    }
  } finally {
    closeSync(fd);
  }
  throw new ImageError('failed', `the package ${path.basename(deb)} has no bin/busybox`);
}

/** Every name the program answers to, as a path without a leading slash. */
async function listNames(program: string, context: BuiltinContext): Promise<string[]> {
  const result = await runTool(program, ['--list-full'], { deadlineMs: TOOL_MS, signal: context.signal });
  const names = result.stdout
    .toString('utf8')
    .split('\n')
    .filter((name) => /^(?:usr\/)?s?bin\/[\w[.+-]+$/.test(name) && name !== 'bin/busybox');
  if (result.code !== 0 || !names.includes('bin/sh')) {
    throw new ImageError('failed', `busybox does not list its names: ${show(result.stderr.trim())}`);
  }
  return names.sort();
}
