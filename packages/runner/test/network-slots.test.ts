/** Slots in an isolated network, with an internet. All of these tests share one network. */
import { fileURLToPath } from 'node:url';
import './network-slots/guests.ts';
import './network-slots/policies.ts';
import './network-slots/reuse.ts';
import './network-slots/lifetime.ts';
import { isolateNetwork } from '@releap/testing/isolated-network';

isolateNetwork(fileURLToPath(import.meta.url));
