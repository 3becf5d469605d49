/**
 * Packages with everything they depend on, from archives that need not be among the machine's sources: apt's own resolver
 * and signature checks, with lists, downloads and a record of installed packages in a folder of ours. Nothing is
 * installed. Plain Node >= 18, no dependencies: set-up runs it before anything is there.
 */
import { mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { ARCHITECTURE } from './architecture.mjs';
import { run, say, SetupError } from './command.mjs';

const ENV = { LC_ALL: 'C.UTF-8' };
const KEYRING = '/usr/share/keyrings/debian-archive-keyring.gpg';

/** The machine's own sources, as if nothing were installed. @param {string} folder absolute */
export async function machineView(folder) {
  return await openView(folder, []);
}

/** Codename of the machine's Debian release, such as `bookworm`; undefined on other distributions. */
export async function debianCodename() {
  const text = await readFile('/etc/os-release', 'utf8').catch(() => '');
  const field = (name) => new RegExp(`^${name}=["']?([^"'\\n]*)`, 'm').exec(text)?.[1];
  return field('ID') === 'debian' ? field('VERSION_CODENAME') : undefined;
}

/**
 * The machine's Debian release with its backports, which are preferred, from the servers that the machine's own
 * sources name.
 * @param {string} folder absolute
 * @param {string} codename such as `bookworm`
 */
export async function backportsView(folder, codename) {
  const { targets, base } = await machineSuites(codename);
  const suite = `${codename}-backports`;
  return await debianView(folder, suite, [...targets, { uri: base.uri, release: suite }]);
}

/**
 * Another release of Debian alone, from the server that the machine's own sources name.
 * @param {string} folder absolute
 * @param {string} codename of the machine, such as `bookworm`
 * @param {string} suite such as `trixie`
 */
export async function suiteView(folder, codename, suite) {
  const { base } = await machineSuites(codename);
  return await debianView(folder, suite, [{ uri: base.uri, release: suite }]);
}

/** Debian's suites among the machine's sources, and the main one of the release. */
async function machineSuites(codename) {
  const format = '$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(CODENAME)|$(COMPONENT)';
  const text = await run('apt-get', ['indextargets', '--format', format, 'Created-By: Packages'], {
    env: ENV,
  });
  const targets = text
    .split('\n')
    .map((line) => line.split('|'))
    .filter(
      ([origin, , , name, component]) =>
        origin === 'Debian' && name?.startsWith(codename) && component === 'main',
    )
    .map(([, uri, release]) => ({ uri, release }));
  const base = targets.find(({ release }) => release === codename || !release.includes('-'));
  if (base === undefined)
    throw new SetupError(
      `none of apt's sources on this machine is Debian's ${codename}, whose server is needed: add it to /etc/apt/sources.list`,
    );
  return { targets, base };
}

async function debianView(folder, preferred, sources) {
  const lines = sources.map(
    ({ uri, release }) => `deb [arch=${ARCHITECTURE.name} signed-by=${KEYRING}] ${uri} ${release} main\n`,
  );
  const list = path.join(folder, 'sources.list');
  await mkdir(path.join(folder, 'lists/partial'), { recursive: true });
  await writeFile(list, [...new Set(lines)].join(''));
  return await openView(folder, [
    `Dir::Etc::SourceList "${list}";`,
    'Dir::Etc::SourceParts "/dev/null";',
    'Dir::Etc::Preferences "/dev/null";',
    'Dir::Etc::PreferencesParts "/dev/null";',
    `Dir::State::Lists "${folder}/lists";`,
    `APT::Default-Release "${preferred}";`,
    // Hooks of other packages after an update of the machine's lists do not apply to these lists.
    '#clear APT::Update::Pre-Invoke;',
    '#clear APT::Update::Post-Invoke;',
    '#clear APT::Update::Post-Invoke-Success;',
  ]);
}

async function openView(folder, settings) {
  const archives = path.join(folder, 'archives');
  const config = path.join(folder, 'apt.conf');
  const status = path.join(folder, 'status');
  await mkdir(path.join(archives, 'partial'), { recursive: true });
  await writeFile(status, '');
  const common = [
    `Dir::State::Status "${status}";`,
    `Dir::Cache::Archives "${archives}";`,
    'Dir::Cache::PkgCache "";',
    'Dir::Cache::SrcPkgCache "";',
    // Only dpkg's lock, which nothing here needs, is in a place of the machine's.
    'Debug::NoLocking "true";',
    // Apt's unprivileged downloader may have no access to our folder.
    'APT::Sandbox::User "root";',
    'APT::Install-Recommends "false";',
    'Acquire::Retries "3";',
  ];
  await writeFile(config, [...common, ...settings, ''].join('\n'));
  return new AptView(archives, config);
}

class AptView {
  constructor(archives, config) {
    this.archives = archives;
    this.config = config;
  }

  /** Updates the lists. */
  async update() {
    say('reading the lists of Debian packages for what is unpacked and not installed');
    await run('apt-get', ['-c', this.config, '-q', 'update'], { env: ENV });
  }

  /** The version that would be taken. @throws SetupError when there is none */
  async candidate(name) {
    const text = await run('apt-cache', ['-c', this.config, 'policy', name], { env: ENV });
    const version = /^ *Candidate: (\S+)$/m.exec(text)?.[1];
    if (version === undefined || version === '(none)')
      throw new SetupError(`the lists of packages have no version of ${name}`);
    return version;
  }

  /** The first dependency of a package that matches. */
  async dependency(name, pattern) {
    const args = ['-c', this.config, 'depends', '--no-recommends', '--no-suggests', name];
    const found = pattern.exec(await run('apt-cache', args, { env: ENV }))?.[1];
    if (found === undefined)
      throw new SetupError(`${name} of the lists depends on no package like ${pattern}`);
    return found;
  }

  /** Downloads one package alone. @param {string} folder absolute, empty. @returns {Promise<string>} its path */
  async downloadOne(name, folder) {
    say(`downloading ${name}`);
    await mkdir(folder, { recursive: true });
    await run('apt-get', ['-c', this.config, '-q', 'download', name], { cwd: folder, env: ENV, minutes: 30 });
    const file = (await readdir(folder)).find((one) => one.endsWith('.deb'));
    if (file === undefined) throw new SetupError(`apt-get download ${name} left no file`);
    return path.join(folder, file);
  }

  /** Downloads a package and all that it depends on. @returns {Promise<string[]>} paths */
  async download(name) {
    say(`downloading ${name} with what it depends on`);
    await run('apt-get', ['-c', this.config, '-q', '-y', '--download-only', 'install', name], {
      env: ENV,
      minutes: 30,
    });
    const files = await readdir(this.archives);
    return files.filter((file) => file.endsWith('.deb')).map((file) => path.join(this.archives, file));
  }
}
