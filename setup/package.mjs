/**
 * `npm run package`: set-up, then the packages of this version in `dist/`: an archive, a Debian package, an image of the control plane and the
 * gateway, the installer, and their checksums.
 */
import path from 'node:path';
import { foreground } from './foreground.mjs';
import { main, NODE, REPO, setUp } from './setup.mjs';

await main(async () => {
  await setUp({});
  process.exitCode = await foreground(NODE, [
    path.join(REPO, 'setup/package/main.mjs'),
    ...process.argv.slice(2),
  ]);
});
