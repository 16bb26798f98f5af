"""How a report looks: the colours and words of severities, and the style of the page."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedmon.report.findings.finding import Severity

# Dark enough for white text on them (contrast 4.5 and more), and told apart by the word, not by the colour alone.
COLOURS: Mapping[Severity, str] = MappingProxyType(
    {
        Severity.PROBLEM: "#b3261e",
        Severity.WARNING: "#9a5b00",
        Severity.NOTE: "#2f5d8a",
        Severity.GOOD: "#2e6b3a",
        Severity.UNKNOWN: "#5f6368",
    }
)
WORDS: Mapping[Severity, str] = MappingProxyType(
    {
        Severity.PROBLEM: "Problem",
        Severity.WARNING: "Look at",
        Severity.NOTE: "Note",
        Severity.GOOD: "Good",
        Severity.UNKNOWN: "Unknown",
    }
)

STYLE = """
:root{--ink:#1d2126;--soft:#5b6570;--line:#d9dee3;--paper:#fff;--shade:#f5f7f9;--link:#2f5d8a}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1.2rem;color:var(--ink);background:var(--paper);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;overflow-wrap:anywhere}
header{border-bottom:2px solid var(--ink);margin-bottom:1rem}
h1{font-size:1.55rem;line-height:1.25;margin:0}header p{color:var(--soft);margin:.2rem 0 .8rem}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}
h3{font-size:1rem;margin:1.2rem 0 .4rem}
nav{display:flex;flex-wrap:wrap;gap:.2rem .9rem;font-size:.87rem;margin-bottom:-1rem}
nav a{color:var(--link);text-decoration:none}nav a:hover{text-decoration:underline}
p.quiet,.how,footer{color:var(--soft);font-size:.87rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(17rem,1fr));gap:.3rem 1.5rem;margin:0}
dl div{border-bottom:1px solid var(--line);padding:.2rem 0;display:flex;gap:.8rem}
dt{color:var(--soft);flex:0 0 7.5rem}dd{margin:0;min-width:0}
.findings{list-style:none;margin:0;padding:0}
.findings li{display:flex;gap:.8rem;padding:.55rem 0;border-bottom:1px solid var(--line)}
.findings li>div{min-width:0}
.mark{flex:0 0 5.2rem;height:1.5rem;line-height:1.5rem;border-radius:.3rem;color:#fff;font-size:.8rem;
font-weight:600;text-align:center}
.advice,.how{display:block}.advice{font-style:italic}
.table{overflow-x:auto}
table{border-collapse:collapse;font-size:.87rem;min-width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem;border-bottom:1px solid var(--line);min-width:3.2rem;
max-width:34rem;overflow-wrap:break-word}
th{background:var(--shade);font-weight:600}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
th.n{white-space:normal}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,34rem),1fr));gap:1rem;margin:.6rem 0}
figure{margin:0;background:#fff;border:1px solid var(--line);border-radius:.3rem;padding:.3rem}
img{display:block;width:100%;height:auto}
figure:only-child{grid-column:1/-1}figure:only-child img{width:auto;max-width:100%;margin:0 auto}
footer{margin-top:2.5rem;border-top:1px solid var(--line);padding-top:.5rem}
@media (prefers-color-scheme:dark){:root{--ink:#e6e9ec;--soft:#a3adb8;--line:#39414a;--paper:#15191d;--shade:#20262c;
--link:#8fbce6}}
@media (max-width:40rem){body{padding:.8rem}.findings li{display:block}.mark{display:inline-block;padding:0 .6rem;
margin-bottom:.2rem}dl{grid-template-columns:1fr}}
@media print{:root{--ink:#000;--soft:#444;--line:#bbb;--paper:#fff;--shade:#eee}
@page{size:A4;margin:15mm}body{font-size:10pt;max-width:none;padding:0}nav{display:none}
h2,h3{break-after:avoid}figure,.findings li,tr{break-inside:avoid}thead{display:table-header-group}
.mark{print-color-adjust:exact;-webkit-print-color-adjust:exact}.table{overflow:visible}}
"""
