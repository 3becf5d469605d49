// A runner's copies of volumes in a process of its own, so that it can die at a failpoint. It opens a volume, lets its parent
// write, and closes it. Arguments: home, runner id, volume id, name of the file, URL of control.
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { openCopies } from './volume-hosts.ts';

const [folder = '', id = '', volumeId = '', content = '', controlUrl = ''] = process.argv.slice(2);
const copies = await openCopies({ id, folder, controlUrl });
await copies.recover();
copies.start(() => false);
const { data } = await copies.open(volumeId, 's', AbortSignal.timeout(120_000));
// As a sandbox would: once, however often the runner dies afterwards.
if (!existsSync(join(data, content))) writeFileSync(join(data, content), content);
await copies.close(volumeId, 's');
const { dirtySince, error } = copies.get(volumeId).state;
await copies.detach();
if (dirtySince !== undefined) throw new Error(error ?? 'its changes are not committed');
