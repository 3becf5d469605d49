# Plays the VMM: holds the slot's tap open and passes frames to and from a tap in the guest's namespace.
# Arguments: path of the slot's namespace, path of the guest's namespace, name of the guest's tap.
use strict;
use warnings;
use Fcntl;
use IO::Select;

my ($slot, $guest, $name) = @ARGV;
sub enter { open(my $ns, '<', $_[0]) or die "$_[0]: $!"; syscall(308, fileno($ns), 0x40000000) == 0 or die "setns: $!"; }
sub tap {
  sysopen(my $fd, '/dev/net/tun', O_RDWR) or die "/dev/net/tun: $!";
  my $request = pack('a16 s x22', $_[0], 0x1002);    # IFF_TAP | IFF_NO_PI
  ioctl($fd, 0x400454ca, $request) or die "TUNSETIFF $_[0]: $!";
  return $fd;
}
enter($slot);
my $outer = tap('tap0');
enter($guest);
my $inner = tap($name);
$| = 1;
print "ready\n";
my $select = IO::Select->new($outer, $inner, \*STDIN);
while (1) {
  for my $from ($select->can_read) {
    if ($from == \*STDIN) { sysread(STDIN, my $end, 1) or exit 0; next; }
    sysread($from, my $frame, 65536) or next;
    syswrite($from == $outer ? $inner : $outer, $frame);
  }
}
