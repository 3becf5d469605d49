import { existsSync } from 'node:fs';
import path from 'node:path';

/** The checkout, or the installation, whose modules are bundled. */
const ROOT = path.resolve(import.meta.dirname, '../../..');

/** Of the Debian package, to which its systemd units belong. */
const PACKAGE_ROOT = '/usr/lib/releap';

/** What set-up has built for this checkout: kernel, guest agent, packages. */
export const BUILD_DIR = path.join(ROOT, 'build');

/** The program that every process of the service runs. */
export const PROGRAM = path.join(import.meta.dirname, 'main.ts');

/** What starts the runner of this machine, to be typed by the operator. */
export function runnerCommand(root = ROOT): string {
  if (root === PACKAGE_ROOT) return 'systemctl enable --now releap-runner';
  return hasSources(root) ? 'npm start -- runner' : `${root}/bin/releap runner`;
}

/** A package and an archive have none. */
export const hasSources = (root = ROOT): boolean =>
  existsSync(path.join(root, 'packages/server/src/main.ts'));
