/**
 * Two hosts of one deployment: an image that one has built boots on the other, a disk snapshot of one is restored on the
 * other, through kills of each at each step, instances of a function continue on one from the memory that the other has captured,
 * a volume is written on both, and a drain moves sandboxes from one to the other and back, through kills of each at each step. All of these tests share the two hosts, in this order.
 */
import './second-host/artifacts.ts';
import './second-host/functions.ts';
import './second-host/volumes.ts';
import './second-host/moves.ts';
